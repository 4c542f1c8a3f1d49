// How fast this machine's cores move bytes when they read as much as they write, which is what an
// allreduce in place does: the B of its lower bound 2pn/B.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::apps {

class MemoryMix {
 public:
  // Of a buffer's size in what one run reads and writes.
  static constexpr int passes = 4;

  // Two buffers of `bytes` each, shared out to min(2, usable cores) threads. Allocates and tries
  // whether ordinary or non-temporal stores are faster.
  explicit MemoryMix(std::int64_t bytes);
  ~MemoryMix();
  MemoryMix(const MemoryMix&) = delete;
  MemoryMix& operator=(const MemoryMix&) = delete;

  // Adds the buffers and writes the sum to both, `times` times; the seconds of each, until the last
  // thread was done. Its threads exist only during the call.
  [[nodiscard]] std::vector<double> run(int times);
  // What one run reads and writes.
  [[nodiscard]] std::int64_t bytes_moved() const { return passes * bytes_; }

 private:
  std::vector<double> run(int times, bool stream);

  std::int64_t bytes_;
  float* buffers_[2] = {nullptr, nullptr};
  int threads_;
  bool stream_ = false;
};

// Median seconds from a store on one core until another sees it; 0 when there is only one core.
[[nodiscard]] double core_to_core_seconds();

}  // namespace lockstep::apps
