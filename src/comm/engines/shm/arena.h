// Arena: the shared memory of one rank, mapped by every rank of the host, and its allocations.
//
// Allocation is local: only the owner allocates and frees, at any time, from any thread; peers find
// a buffer by its offset. Several processes may hold a block; it is freed when the last of them
// releases it. Shared ownership: tensors in the arena keep it mapped after the engine is gone. In a
// forked child, which has the same memory and a copy of the bookkeeping, the arena allocates and
// frees nothing.
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
  // Called by the owner if the remaining takers never will take the block.
  static void expect_nobody(std::byte* held);
  // Returns true if `data` points into a held block.
  [[nodiscard]] bool is_held(const std::byte* data);
  // Returns the number of bytes handed out now.
  [[nodiscard]] std::size_t used();

  // Returns the number of resident bytes.
  [[nodiscard]] std::size_t resident_bytes() const { return memory_.resident_bytes(); }
  // Makes the pages of a block resident now. Returns false if the system does not have them.
  [[nodiscard]] bool reserve(std::span<const std::byte> block) const;
  // Returns the pages of all free memory to the system. Otherwise an arena keeps some.
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

  const sys::OwnProcess process_;
  const std::optional<std::size_t> users_limit_;  // for freed memory that stays resident
  sys::SharedMemory memory_;
  std::mutex mutex_;
  Allocator allocator_;
  Reuse reuse_;
  std::vector<std::byte*> held_;  // blocks, each with a HeldBlock header
};

// Returns the address space of one of `ranks` arenas: `asked` (its origin is `name`, for messages),
// else a share of the host's memory. Throws BadInput if `asked` is more than is free now.
[[nodiscard]] std::size_t arena_bytes(std::optional<std::int64_t> asked, std::string_view name,
                                      int ranks);

// Returns the address space for tensors beside those bytes of an arena: as much as the host has
// memory, since untouched pages cost nothing. It is limited by the maximal size of a file, and so
// that half of the address space (2^47 bytes, or ulimit -v) stays free in a process that maps the
// arenas of all ranks.
[[nodiscard]] std::size_t bytes_for_tensors(std::size_t arena_bytes, int ranks);

}  // namespace lockstep::shm
