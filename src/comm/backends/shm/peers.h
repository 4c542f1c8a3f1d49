// PeerMappings: the arenas and control pages of all ranks of the host, as mapped by this process.
// The control page of a process shows its peers how to wake it, which operations it executes, and
// whether it has left.
//
// PeerMappings does not change after the arena exchange.
#pragma once

#include "comm/backends/shm/arena.h"
#include "comm/call/record.h"
#include "sys/file_descriptor.h"
#include "sys/shared_memory.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace lockstep::shm {

// A byte of the arena of a world rank; default: no buffer.
struct RemoteAddress {
  int rank = -1;
  std::uint64_t offset = 0;

  [[nodiscard]] bool is_somewhere() const { return rank >= 0; }
  // 0 stands for no buffer: offset 0 of every arena is its control page.
  [[nodiscard]] std::uint64_t word() const {
    if (!is_somewhere()) return 0;
    return (std::uint64_t(rank) << offset_bits) | offset;
  }
  [[nodiscard]] static RemoteAddress of(std::uint64_t word) {
    if (word == 0) return {};
    return {static_cast<int>(word >> offset_bits), word & ((std::uint64_t{1} << offset_bits) - 1)};
  }

 private:
  static constexpr int offset_bits = 48;
};

// Wakes the sleeping threads of one kind in one process; the protocol is below.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

// The protocol of a doorbell (Dekker's, over two words):
//   sleeper: sleepers += 1; remember rings; check for work again; if no work is found, sleep while
//            rings is unchanged
//   ringer:  change something; if sleepers != 0: rings += 1, wake all
// All four accesses are sequentially consistent. So is the change, or a fence separates it from the
// ring. A fence also separates the sleeper's increment from its second check for work, so the check
// may use weaker accesses. Therefore either the ringer sees the sleeper, or the sleeper's second
// check sees the change. If a ring comes between the check and the sleep, `rings` has changed and
// the futex does not sleep. Without sleepers a ring is one load and no system call.
inline void ring(Doorbell& bell) {
  if (bell.sleepers.load(std::memory_order_seq_cst) == 0) return;
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake_all(bell.rings);
}

// Sleeps until the bell is rung, at most `most`; not at all if look() returns true.
template <typename Look>
void sleep_until_rung(Doorbell& bell, Duration most, Look&& look) {
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  auto rings = bell.rings.load(std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!look()) sys::futex_wait(bell.rings, rings, most);
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// The first page of every arena: the facts that peers may read about this process at any time.
//
// Only the owner writes to the page, except for the doorbells, which any process may ring.
struct alignas(64) ControlPage {
  static constexpr std::size_t executing_slots = 30;

  Doorbell waiting;  // threads inside wait()
  Doorbell helper;   // the helper thread
  // Set when the process leaves: from then on it posts and executes nothing.
  alignas(64) std::atomic<std::uint32_t> has_left{0};
  // The operations that threads of the process are executing: words of execution_word(), 0 for
  // none.
  alignas(64) std::array<std::atomic<std::uint64_t>, executing_slots> executing{};
};
static_assert(sizeof(ControlPage) <= Arena::reserved_bytes);

// A word that identifies an operation of a channel: 20 bits of the channel's key, so two channels
// may have equal words, and the operation's number.
inline constexpr int execution_sequence_bits = 44;

[[nodiscard]] constexpr std::uint64_t execution_word(std::uint64_t channel_key,
                                                     std::uint64_t sequence) {
  return channel_key << execution_sequence_bits |
         (sequence & ((std::uint64_t{1} << execution_sequence_bits) - 1));
}
// Returns true if `word` may identify an operation of the channel with `channel_key`.
[[nodiscard]] constexpr bool is_of_channel(std::uint64_t word, std::uint64_t channel_key) {
  return word >> execution_sequence_bits ==
         execution_word(channel_key, 0) >> execution_sequence_bits;
}

struct Peer {
  pid_t pid = 0;                              // 0 if not visible to this process
  sys::FileDescriptor process;                // pidfd, if the pid is visible
  sys::FileDescriptor socket;                 // of the arena exchange; closes when the peer ends
  std::shared_ptr<sys::SharedMemory> memory;  // null for this rank itself
};

class PeerMappings {
 public:
  PeerMappings(int rank, std::shared_ptr<Arena> arena, std::vector<Peer> peers);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(peers_.size()); }
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return arena_; }
  [[nodiscard]] const Peer& peer(int rank) const { return peers_[rank]; }

  [[nodiscard]] std::byte* base(int rank) const { return bases_[rank]; }
  // Returns an owner that keeps the arena of `rank` mapped in this process.
  [[nodiscard]] std::shared_ptr<const void> mapping(int rank) const {
    if (rank == rank_) return arena_;
    return peers_[rank].memory;
  }
  [[nodiscard]] ControlPage& control(int rank) const {
    return *reinterpret_cast<ControlPage*>(base(rank));
  }
  [[nodiscard]] ControlPage& own_control() const { return control(rank_); }
  // Returns the address of a location in this process; null for a default RemoteAddress.
  [[nodiscard]] std::byte* address(RemoteAddress location) const {
    return location.is_somewhere() ? base(location.rank) + location.offset : nullptr;
  }
  // Wakes threads of the given ranks: threads that wait and, if `helpers` is true, helper threads.
  void ring(std::span<const int> ranks, bool helpers = true) const;
  // Returns the location of a buffer that lies entirely in one arena; a default RemoteAddress for
  // any other buffer.
  [[nodiscard]] RemoteAddress locate(const std::byte* data, std::size_t bytes) const;

 private:
  int rank_;
  std::shared_ptr<Arena> arena_;
  std::vector<Peer> peers_;
  std::vector<std::byte*> bases_;
};

inline PeerMappings::PeerMappings(int rank, std::shared_ptr<Arena> arena, std::vector<Peer> peers)
    : rank_(rank), arena_(std::move(arena)), peers_(std::move(peers)) {
  for (int peer = 0; peer < size(); ++peer)
    bases_.push_back(peer == rank_ ? arena_->data() : peers_[peer].memory->data());
}

inline void PeerMappings::ring(std::span<const int> ranks, bool helpers) const {
  for (int rank : ranks) {
    shm::ring(control(rank).waiting);
    if (helpers) shm::ring(control(rank).helper);
  }
}

inline RemoteAddress PeerMappings::locate(const std::byte* data, std::size_t bytes) const {
  if (arena_->contains(data, bytes))
    return {rank_, static_cast<std::uint64_t>(data - arena_->data())};
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    const auto& memory = *peers_[rank].memory;
    if (data >= memory.data() && data + bytes <= memory.data() + memory.bytes())
      return {rank, static_cast<std::uint64_t>(data - memory.data())};
  }
  return {};
}

// Execution marks: the threads of each process publish the operations that they execute in its
// control page, which all ranks read.
//
// Invariant: a thread marks an operation before it checks whether the operation's group has failed,
// and touches buffers only if the group has not failed. Both accesses are sequentially consistent,
// and so are the write of a failure and the reads of the marks that follow it. So if a process sees
// no mark of a failed group, no thread touches buffers of the group any more.
class ExecutionMarks {
 public:
  explicit ExecutionMarks(const PeerMappings& peers) : own_(peers.own_control().executing) {}

  // Returns a free place of this process; std::nullopt if all places are in use. The place stays
  // free until set(). Call both functions under one mutex.
  [[nodiscard]] std::optional<std::size_t> free_place() const {
    auto free = std::find_if(own_.begin(), own_.end(), [](const auto& place) {
      return place.load(std::memory_order_acquire) == 0;
    });
    if (free == own_.end()) return std::nullopt;
    return static_cast<std::size_t>(free - own_.begin());
  }
  void set(std::size_t place, std::uint64_t word) {
    own_[place].store(word, std::memory_order_seq_cst);
  }
  void clear(std::size_t place) { own_[place].store(0, std::memory_order_release); }

 private:
  decltype(ControlPage::executing)& own_;
};

// Calls visit(word) for each mark of a process.
template <typename Visit>
void visit_marks(const PeerMappings& peers, int world_rank, Visit&& visit) {
  for (const auto& place : peers.control(world_rank).executing) {
    if (auto word = place.load(std::memory_order_seq_cst); word != 0) visit(word);
  }
}

// PeerLiveness: the state of the process of each rank of the host. A process that leaves sets a
// flag in its control page; the watcher (watcher.h) detects a process that ends without leaving.
class PeerLiveness {
 public:
  explicit PeerLiveness(const PeerMappings& peers)
      : peers_(peers), ended_(std::make_unique<std::atomic<bool>[]>(peers.size())) {}

  // Declares that this process posts and executes nothing more in any group. Wakes the peers.
  void leave() {
    peers_.own_control().has_left.store(1, std::memory_order_seq_cst);
    peers_.ring(all_ranks(peers_.size()));
  }
  // Notes that the process of a world rank ended without leaving.
  void note_end(int rank) { ended_[rank].store(true, std::memory_order_seq_cst); }

  // Returns true if a world rank has left in order.
  [[nodiscard]] bool has_left(int rank) const {
    return peers_.control(rank).has_left.load(std::memory_order_seq_cst) != 0;
  }
  [[nodiscard]] bool has_ended(int rank) const {
    return ended_[rank].load(std::memory_order_seq_cst);
  }
  // Returns true if the process may still execute operations, as far as this process knows.
  [[nodiscard]] bool is_alive(int rank) const { return !has_left(rank) && !has_ended(rank); }

 private:
  const PeerMappings& peers_;
  const std::unique_ptr<std::atomic<bool>[]> ended_;  // by world rank
};

}  // namespace lockstep::shm
