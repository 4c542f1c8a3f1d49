// LibTorch's CPU allocator on top of arenas: tensors above a minimal size are placed where peers
// can read and write them, so that operations on them avoid copies.
//
// LibTorch has one CPU allocator per process, which tensors reference during their whole lifetime,
// so the allocator is installed once and never removed. Only the arena from which it takes memory
// changes. An arena that served tensors stays mapped until the last of these tensors is destroyed.
//
// Invariant: memory is returned to its own allocator, regardless of which arena serves now: an
// address lies in at most one arena, or belongs to the previous allocator.
//
// Thread-safe. A forked child gets all its memory from the previous allocator, and the arena is not
// mapped there: if it were shared with the parent, tensors of one would change under the other.
#pragma once

#include "comm/backends/shm/arena.h"

#include <cstddef>
#include <memory>

namespace lockstep::shm {

// During the object's lifetime, new CPU tensors of at least `least_bytes` take their memory from
// the arena, up to `most_bytes` in total and if there is room; all others take it from the previous
// allocator. If there are several objects at once, the first one is used.
// sys::return_freed_memory() also returns the arena's free pages to the system.
class ArenaTensors {
 public:
  // Smaller tensors are cheaper to copy than to find in the arenas.
  static constexpr std::size_t least_bytes = 64 << 10;

  // When a tensor's pages are allocated. `at_once` costs time, but if memory runs out, making the
  // tensor throws, as with LibTorch's own allocator, and touching it cannot fail.
  enum class Pages { when_touched, at_once };

  ArenaTensors(const std::shared_ptr<Arena>& arena, std::size_t most_bytes,
               Pages pages = Pages::when_touched);
  ~ArenaTensors();
  // Returns false in a forked child if the parent has made an ArenaTensors.
  [[nodiscard]] static bool are_possible();
  ArenaTensors(const ArenaTensors&) = delete;
  ArenaTensors& operator=(const ArenaTensors&) = delete;

 private:
  const bool serves_;
};

}  // namespace lockstep::shm
