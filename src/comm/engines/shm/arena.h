// Arena: the shared memory of one rank, mapped by every rank of the host, and what it has handed
// out of it.
//
// Allocation is local: only the owner allocates and frees, at any time, from any thread; peers find
// a buffer by its offset. A block may be handed to several processes; then the last of them frees
// it. Shared ownership: tensors in the
// arena keep it mapped after the engine has gone. In a forked child, which has the same memory and
// a copy of what was handed out of it, it hands out nothing and takes nothing back.
#pragma once

#include "comm/engines/shm/allocator.h"
#include "sys/own_process.h"
#include "sys/shared_memory.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::shm {

class Arena {
 public:
  // Its first bytes, which are zero at first and never handed out: the control page (peers.h).
  static constexpr std::size_t reserved_bytes = 4096;

  // `bytes` of address space; a page is taken when it is first touched.
  explicit Arena(std::size_t bytes);

  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }
  [[nodiscard]] int file() const { return memory_.file(); }

  // 64-byte aligned and uninitialised. Throws BadInput with the sizes when there is no room, ending
  // in `advice`, and InvalidArgument in a forked child.
  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::string_view advice = {});
  // The same; empty when there is no room. As long as what was handed out.
  [[nodiscard]] std::span<std::byte> try_allocate(std::size_t bytes);
  // The same from fresh pages, which read as zero.
  [[nodiscard]] std::byte* allocate_zeroed(std::size_t bytes);
  // Returns its length.
  std::size_t free(std::byte* block);
  // A block that `holders` processes hold from now on and `takers` more are still to take. Each
  // lets it go, on the address where it sees the block; once all have, it is free again. The owner
  // finds that out at a later call.
  [[nodiscard]] std::byte* allocate_held(std::size_t bytes, int holders, int takers = 0);
  static void take(std::byte* held);
  static void release_hold(std::byte* held);
  // By the owner, when those that have not taken it never will.
  static void expect_nobody(std::byte* held);
  // Whether that byte lies in such a block.
  [[nodiscard]] bool is_held(const std::byte* data);
  // Bytes handed out now.
  [[nodiscard]] std::size_t used();

  // Of pages that are taken now.
  [[nodiscard]] std::size_t resident_bytes() const { return memory_.resident_bytes(); }
  // Takes the pages of a block now. False: the system does not have them.
  [[nodiscard]] bool reserve(std::span<const std::byte> block) const;
  // Gives the pages of all that is free back to the system. By itself an arena keeps some.
  void give_back_pages();
  // A child that is forked from now on does not have the memory: touching it ends the child.
  void keep_from_children() const { memory_.keep_from_children(); }

  [[nodiscard]] bool contains(const void* data, std::size_t bytes) const {
    auto* first = static_cast<const std::byte*>(data);
    return first >= memory_.data() && first + bytes <= memory_.data() + memory_.bytes();
  }

 private:
  void free_at(std::size_t offset);
  void give_back_pages_beyond(std::size_t kept);
  void free_released();

  const sys::OwnProcess process_;
  const std::optional<std::size_t> users_limit_;  // of freed memory that stays
  sys::SharedMemory memory_;
  std::mutex mutex_;
  Allocator allocator_;
  Reuse reuse_;
  std::vector<std::byte*> held_;  // blocks, each beginning with a HeldBlock
};

// Address space for one of `ranks` arenas: `asked` (its origin is `name`, for messages), else a
// share of the machine's memory. BadInput when more was asked for than is free now.
[[nodiscard]] std::size_t arena_bytes(std::optional<std::int64_t> asked, std::string_view name,
                                      int ranks);

// How many bytes of address space tensors get beside those of such an arena: as much as the machine
// has memory, since pages that nobody touches cost nothing, but no more than a file may have, and
// half of the address space stays free in a process that maps the arenas of all ranks (it ends at
// 2^47 bytes, or at ulimit -v).
[[nodiscard]] std::size_t bytes_for_tensors(std::size_t arena_bytes, int ranks);

}  // namespace lockstep::shm
