// Allocator: hands out ranges of an address space that it never touches. Best fit, lowest address
// first; adjacent free ranges are merged. Not synchronised.
//
// It also keeps an upper bound of the bytes in free ranges that may have resident pages, so that
// its owner can return them to the system.
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
  static constexpr std::size_t large = 64 << 10;  // ranges of at least this size begin at a page

  struct Extent {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  // Hands out [begin, end), both multiples of `page`.
  Allocator(std::size_t begin, std::size_t end);

  // Returns the offset of a range of at least `bytes`; std::nullopt if no free range is large
  // enough.
  [[nodiscard]] std::optional<std::size_t> allocate(std::size_t bytes);
  void free(std::size_t offset);

  // Returns the size of the range that was handed out at `offset`.
  [[nodiscard]] std::size_t bytes_at(std::size_t offset) const { return used_ranges_.at(offset); }
  [[nodiscard]] std::size_t used() const { return used_; }
  [[nodiscard]] std::size_t largest_free() const;
  // Returns the number of free bytes that may have been written to.
  [[nodiscard]] std::size_t touched_free() const { return touched_; }
  // Returns the free range with the most touched bytes and counts it as untouched from now on: the
  // owner returns its pages.
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

// Reuse: estimates how much of the freed memory is soon handed out again.
//
// A training step frees its activations and allocates as many in the next one. If an arena returned
// their pages in between, the kernel would zero all of them in every step. So the arena keeps as
// many bytes free as were reused: the largest drop of the free bytes from an earlier peak, assuming
// that no pages are returned. Freed blocks that were never reused are not counted.
//
// Only the last two windows count, so that a program whose needs shrink keeps less. A window ends
// when enough bytes were handed out for several training steps. Not synchronised.
class Reuse {
 public:
  // The length of a window is `turnovers` times the peak use in it, and at least `least_window`. A
  // training step hands out two to four times its peak use.
  static constexpr std::size_t turnovers = 16;
  static constexpr std::size_t least_window = std::size_t{4} << 30;

  void allocated(std::size_t bytes);
  void freed(std::size_t bytes);
  // Returns the number of bytes that are worth keeping free: twice the reused bytes. Free memory is
  // fragmented, some fragments fit nothing, and the largest fragments are the ones whose pages are
  // returned.
  [[nodiscard]] std::size_t bytes() const;

 private:
  std::size_t used_ = 0;
  std::size_t free_ = 0;  // assuming that no pages are returned

  // Of the current window.
  std::size_t handed_out_ = 0;
  std::size_t most_used_ = 0;
  std::size_t most_free_ = 0;
  std::size_t reused_ = 0;

  std::size_t reused_before_ = 0;  // in the previous window
};

}  // namespace lockstep::shm
