// What this host can do at best: the latency between its cores, and the rate of its memory.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::apps {

// Returns the median latency in seconds between two cores that this process may use, measured with
// two threads; 0 if there is only one core. Blocks for some milliseconds.
[[nodiscard]] double core_to_core_seconds();

// The rate at which the ranks of a host move bytes when they read as much as they write. An
// in-place all_reduce must do that, so it gives a lower bound of its time.

// The kind of instructions in a pass. The fastest kind differs among processors and sizes.
struct PassKind {
  bool streams = false;     // non-temporal stores
  bool prefetches = false;  // prefetches memory before reading it
};
[[nodiscard]] std::span<const PassKind> pass_kinds();
// Timed passes per turn, after one warm-up pass.
inline constexpr int passes_of_a_kind = 3;

// One rank's share of the bound of an all_reduce: p tensors of n bytes lie in the host's memory,
// each byte is read once and written once, and p ranks share the work, so each moves 2n bytes. A
// pass writes the average of the two halves of n bytes to both halves, two vectors at a time, as
// the library's own loop does. Memory uses huge pages if the system has them, and each rank has its
// own.
class MemoryBound {
 public:
  // Throws SystemError if `bytes` cannot be mapped.
  explicit MemoryBound(std::int64_t bytes);
  ~MemoryBound();
  MemoryBound(const MemoryBound&) = delete;
  MemoryBound& operator=(const MemoryBound&) = delete;

  // Runs a pass in the calling thread; the values do not change.
  void pass(PassKind kind);

 private:
  std::int64_t count_;   // elements of a half
  std::int64_t other_;   // offset of the other half
  std::int64_t mapped_;  // bytes
  float* memory_ = nullptr;
};

}  // namespace lockstep::apps
