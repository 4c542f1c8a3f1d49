// Reuse: how much of the memory that was freed is handed out again soon.
//
// A training step frees its activations and allocates as many in the next one. An arena that gave
// their pages back in between would have the kernel zero all of them in every step. So it keeps
// free as much as was handed out again, of what had been freed, at most at a time: the deepest fall
// of the free bytes from a height before it, if nothing were given back. What was freed and not
// wanted again does not count.
//
// Only the last two windows count, so that a program that comes to need less keeps less. A window
// ends when so many bytes were handed out in it that a training step would have happened several
// times. Not synchronised.
#pragma once

#include <cstddef>

namespace lockstep::shm {

class Reuse {
 public:
  // A window is `turnovers` times what is in use at most in it, or `least_window` where that is
  // more. A training step hands out two to four times what it holds at most.
  static constexpr std::size_t turnovers = 16;
  static constexpr std::size_t least_window = std::size_t{4} << 30;

  void allocated(std::size_t bytes);
  void freed(std::size_t bytes);
  // Bytes that are worth keeping free: twice what is handed out again, because what is free lies in
  // pieces, some of which fit nothing, and pages that are given back are those of the largest.
  [[nodiscard]] std::size_t bytes() const;

 private:
  std::size_t used_ = 0;
  std::size_t free_ = 0;  // if nothing were given back

  // Of this window.
  std::size_t handed_out_ = 0;
  std::size_t most_used_ = 0;
  std::size_t most_free_ = 0;
  std::size_t reused_ = 0;

  std::size_t reused_before_ = 0;  // of the last window
};

}  // namespace lockstep::shm
