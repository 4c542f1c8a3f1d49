// Allocator: hands out ranges of an address space that it never touches. Best fit, lowest address
// first; neighbours that are free grow together. Not synchronised.
//
// It also keeps an upper bound of the bytes in free ranges whose pages may be taken, so that its
// owner can give them back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::shm {

class Allocator {
 public:
  static constexpr std::size_t grain = 64;
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t large = 64 << 10;  // ranges from this size on begin at a page

  struct Extent {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  // Hands out [begin, end), both multiples of `page`.
  Allocator(std::size_t begin, std::size_t end);

  // A range of at least `bytes`; nothing when no free range is large enough.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes);
  void free(std::size_t offset);

  // Of the range that was handed out there.
  [[nodiscard]] std::size_t bytes_at(std::size_t offset) const { return used_ranges_.at(offset); }
  [[nodiscard]] std::size_t used() const { return used_; }
  [[nodiscard]] std::size_t largest_free() const;
  // Free bytes that may have been written to.
  [[nodiscard]] std::size_t touched_free() const { return touched_; }
  // The free range with the most touched bytes, from now on counted as untouched: its owner gives
  // the pages back.
  [[nodiscard]] std::optional<Extent> take_touched();

 private:
  struct Free {
    std::size_t bytes;
    std::size_t touched;  // an upper bound
  };
  using FreeMap = std::map<std::size_t, Free>;

  void insert(std::size_t offset, Free extent);
  FreeMap::iterator erase(FreeMap::iterator extent);
  [[nodiscard]] std::optional<std::size_t> place(std::size_t bytes, std::size_t alignment);

  FreeMap free_;
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (bytes, offset)
  std::map<std::size_t, std::size_t> used_ranges_;
  std::size_t used_ = 0;
  std::size_t touched_ = 0;
};

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
