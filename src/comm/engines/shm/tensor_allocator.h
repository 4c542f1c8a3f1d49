// LibTorch's CPU allocator on top of arenas: tensors of some size then lie where peers can read and
// write them, so that operations on them move no byte more than they must.
//
// LibTorch has one CPU allocator a process, which tensors remember for as long as they live, so it
// is installed once and never removed. What changes is the arena that it takes memory from. An
// arena that served tensors stays mapped until the last of them has gone.
//
// Invariant: memory goes back to where it came from, whatever serves now: an address lies in at
// most one arena, or it is the previous allocator's.
//
// Any thread. A forked child gets all its memory from the previous allocator, and the arena is not
// mapped there: shared with the parent, the tensors of one would change under the other
// (absent_in_children.h).
#pragma once

#include "comm/engines/shm/arena.h"

#include <cstddef>
#include <memory>

namespace lockstep::shm {

// While it lives, tensors that are made on the CPU take their memory from that arena, from
// `least_bytes` on, `most_bytes` in all and where there is room; else from the allocator that was
// there before. Of several at once the first serves. What is free in the arena goes back to the
// system by sys::return_freed_memory() too.
class ArenaTensors {
 public:
  // Less is copied sooner than it is looked for in the arenas.
  static constexpr std::size_t least_bytes = 64 << 10;

  // When the system gives a tensor its pages. `at_once` costs time, but then making the tensor
  // fails where there are none, as with LibTorch's own allocator, and touching it never does.
  enum class Pages { when_touched, at_once };

  ArenaTensors(const std::shared_ptr<Arena>& arena, std::size_t most_bytes,
               Pages pages = Pages::when_touched);
  ~ArenaTensors();
  // Whether this process can have any: not a forked child of one that has had some.
  [[nodiscard]] static bool are_possible();
  ArenaTensors(const ArenaTensors&) = delete;
  ArenaTensors& operator=(const ArenaTensors&) = delete;

 private:
  const bool serves_;
};

}  // namespace lockstep::shm
