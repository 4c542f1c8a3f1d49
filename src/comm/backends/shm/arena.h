// Arena: the shared memory of one rank, mapped by every rank of the host, and its allocations.
//
// Allocation is local: only the owner allocates and frees, at any time, from any thread; peers find
// a buffer by its offset. Several processes may hold a block; it is freed when the last of them
// releases it. Shared ownership: tensors in the arena keep it mapped after the backend is gone. In
// a forked child, the arena allocates and frees nothing, because the child would only change its
// own copy of the bookkeeping.
#pragma once

#include "sys/own_process.h"
#include "sys/shared_memory.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::shm {

// Allocator: hands out ranges of an address space that it never touches. Best fit, lowest address
// first; adjacent free ranges are merged. Not synchronised.
//
// It also tracks an upper bound of the free bytes that may have resident pages, so that its owner
// can return these pages to the system.
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

// RetentionEstimate: estimates how much of the freed memory is soon handed out again.
//
// A training step frees its activations and allocates as many in the next one. If an arena returned
// their pages in between, the kernel would zero all of them in every step. So the arena keeps as
// many bytes free as were reused: the largest drop of the free bytes from an earlier peak, assuming
// that no pages are returned. Freed blocks that were never reused are not counted.
//
// Only the last two windows count, so that a program whose needs shrink keeps less. A window ends
// when enough bytes were handed out for several training steps. Not synchronised.
class RetentionEstimate {
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

class Arena {
 public:
  // The first bytes, initially zero and never handed out: the control page (peers.h).
  static constexpr std::size_t reserved_bytes = 4096;

  // `bytes` of address space; pages become resident when they are first touched. The rank of the
  // owner is the place of the mapping (sys::SharedMemory).
  explicit Arena(std::size_t bytes, int rank = 0);

  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }
  [[nodiscard]] int file() const { return memory_.file(); }

  // Returns a 64-byte aligned, uninitialised block. If there is no room, throws BadInput with the
  // sizes and `advice` at the end; in a forked child throws InvalidArgument.
  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::string_view advice = {});
  // Returns the block with its actual length; empty if there is no room.
  [[nodiscard]] std::span<std::byte> try_allocate(std::size_t bytes);
  // Allocates from fresh pages, which read as zero.
  [[nodiscard]] std::byte* allocate_zeroed(std::size_t bytes);
  // Frees the block; returns its length.
  std::size_t free(std::byte* block);
  // Allocates a block that `holders` processes hold now and `takers` more will take. Each process
  // releases it by the address at which it sees the block; once all have, it is free again. The
  // owner notices that in a later call.
  [[nodiscard]] std::byte* allocate_held(std::size_t bytes, int holders, int takers = 0);
  static void take(std::byte* held);
  static void release_hold(std::byte* held);
  // Called by the owner if the remaining takers will never take the block.
  static void expect_nobody(std::byte* held);
  // Returns true if `data` points into a held block.
  [[nodiscard]] bool is_held(const std::byte* data);
  // Returns the number of bytes handed out now.
  [[nodiscard]] std::size_t used();

  // Returns the number of resident bytes.
  [[nodiscard]] std::size_t resident_bytes() const { return memory_.resident_bytes(); }
  // Makes the pages of a block resident now. Returns false if the system does not have them.
  [[nodiscard]] bool reserve(std::span<const std::byte> block) const;
  // Returns the pages of all free memory to the system, including those that the arena would keep.
  void give_back_pages();
  // Excludes the memory from children that are forked from now on: touching it ends the child.
  void keep_from_children() const { memory_.keep_from_children(); }

  [[nodiscard]] bool contains(const void* data, std::size_t bytes) const {
    auto* first = static_cast<const std::byte*>(data);
    return first >= memory_.data() && first + bytes <= memory_.data() + memory_.bytes();
  }

 private:
  void free_at(std::size_t offset);
  void give_back_pages_beyond(std::size_t kept);
  void free_released();

  const sys::ForkAware process_;
  const std::optional<std::size_t> users_limit_;  // for freed memory that stays resident
  sys::SharedMemory memory_;
  std::mutex mutex_;
  Allocator allocator_;
  RetentionEstimate reuse_;
  std::vector<std::byte*> held_;  // blocks, each with a HeldBlock header
};

// Returns the size of the address space of one of `ranks` arenas: `asked` if set, else a share of
// the host's memory. Throws BadInput if `asked` is more than the free memory; the message says that
// the size came from `name`.
[[nodiscard]] std::size_t arena_bytes(std::optional<std::int64_t> asked, std::string_view name,
                                      int ranks);

// Returns the size of the address space for tensors, in addition to `arena_bytes`: as large as the
// host's memory, since untouched pages cost nothing. Limited by the maximal file size, and such
// that a process that maps the arenas of all ranks keeps half of its address space (2^47 bytes, or
// ulimit -v) free.
[[nodiscard]] std::size_t bytes_for_tensors(std::size_t arena_bytes, int ranks);

}  // namespace lockstep::shm
