// How fast the ranks of a machine move bytes when they read as much as they write, which is what an
// all_reduce in place must do: the lower bound of its time.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::apps {

// How a pass goes over its memory. Which is fastest differs among processors and sizes.
struct PassKind {
  bool streams = false;     // non-temporal stores
  bool prefetches = false;  // asks for memory before it reads it
};
[[nodiscard]] std::span<const PassKind> pass_kinds();
// That are timed in one turn, after one that is not.
inline constexpr int passes_of_a_kind = 3;

// One rank's share of the bound of an all_reduce: p tensors of n bytes lie in the machine's memory,
// each byte is read once and written once, and p ranks share the work, so each moves 2n bytes. A
// pass averages the two halves of n bytes into both of them, two vectors at a time, as the
// library's own loop does. Pages are large where the system has such, and each rank has its own.
class MemoryBound {
 public:
  // SystemError where `bytes` cannot be mapped.
  explicit MemoryBound(std::int64_t bytes);
  ~MemoryBound();
  MemoryBound(const MemoryBound&) = delete;
  MemoryBound& operator=(const MemoryBound&) = delete;

  // In the calling thread; values stay as they are.
  void pass(PassKind kind);

 private:
  std::int64_t count_;   // elements of a half
  std::int64_t other_;   // where the other half begins
  std::int64_t mapped_;  // bytes
  float* memory_ = nullptr;
};

}  // namespace lockstep::apps
