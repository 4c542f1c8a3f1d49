// Endpoint: the state of one process for the ranks of its host. It owns the arena, the mappings of
// the peers' arenas, the groups, the progress engine and the watcher thread. Each backend family
// has one endpoint, which its handles share; nothing is global.
//
// Invariants:
//   - The mutex of the progress engine also guards the list of groups.
//   - A group outlives its handle until all its posted operations are complete or, after an error,
//     until the endpoint ends, because a stopped peer may still execute. A thread that uses a group
//     without a handle and without that mutex must hold a shared_ptr to it. The member that made
//     the group's block frees it when all members are gone; a thread whose group is being reaped
//     does not access the block.
//   - In a forked child nothing here is used or destroyed, because it belongs to the parent.
#pragma once

#include "comm/backends/shm/arena.h"
#include "comm/backends/shm/arena_exchange.h"
#include "comm/backends/shm/group_member.h"
#include "comm/backends/shm/peers.h"
#include "comm/backends/shm/progress.h"
#include "comm/backends/shm/watcher.h"
#include "sys/own_process.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::shm {

struct EndpointOptions {
  Duration timeout = std::chrono::minutes(10);  // of making a group
  Duration join_timeout = std::chrono::minutes(5);
  std::vector<int> world_ranks = {};  // of these ranks, if they are not the whole world
  std::size_t arena_bytes = 1 << 30;  // address space
};

class Endpoint {
 public:
  // Blocks until all ranks have arrived.
  Endpoint(std::shared_ptr<Store> store, int rank, int size, EndpointOptions options);
  // Leaves; does not wait for peers.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] const PeerMappings& peers() const { return exchanged_.peers; }
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return arena_; }
  [[nodiscard]] ProgressEngine& progress() { return *progress_; }

  // The endpoint owns its groups. Call leave() when the group's handle is destroyed; it does not
  // block.
  [[nodiscard]] GroupMember& world() { return *world_; }
  // All `members` (world ranks) must call with the same unique name. Throws PeerLost if a member
  // has ended, and BadInput on all members if the arena of the first member has no room for the
  // group's block.
  [[nodiscard]] GroupMember& make_group(const std::string& name, std::vector<int> members);
  void leave(GroupMember& group, bool by_exception = false);
  // Gives up `held`, a block for members of the group, after the call that allocated it failed. The
  // block becomes free when the members that took it have released it and all other members have
  // left the group.
  void give_up(GroupMember& group, std::byte* held);

 private:
  struct OwnBlock {
    std::byte* data;
    int members;
    std::string key;  // in the store, where the other members find the block
  };
  struct GivenUp {
    std::shared_ptr<GroupMember> group;
    std::byte* held;
  };

  [[nodiscard]] std::byte* make_block(int members, std::string key = {});
  // Makes the block of a group whose first member is this rank. If this fails, informs the other
  // members.
  [[nodiscard]] std::byte* make_own_block(const std::string& key, const GroupNames& names,
                                          std::span<const int> members);
  // Writes the reason why the group cannot be made under the group's key.
  void refuse(const std::string& key, const std::string& why) noexcept;
  // Erases the store keys of groups that all members have left.
  void erase_used_keys();
  [[nodiscard]] GroupMember& add_group(const GroupNames& names, std::vector<int> members,
                                       std::byte* block);
  // Throws PeerLost unless all `members` can take part in a new group.
  void check_alive(const GroupNames& names, std::span<const int> members) const;
  // Returns the offset of the group's block in the arena of the first member.
  [[nodiscard]] std::uint64_t find_block(const std::string& key, const GroupNames& names,
                                         std::span<const int> members);
  void on_peer_end(int rank);
  // Destroys groups that this rank has left and whose operations are complete, and frees unused
  // blocks.
  void reap();

  const sys::ForkAware process_;
  std::shared_ptr<Store> store_;
  const EndpointOptions options_;
  const GroupNames names_;  // of the world of this endpoint
  std::shared_ptr<Arena> arena_;
  std::string prefix_;
  std::vector<OwnBlock> own_blocks_;  // made by this rank; guarded like groups_
  std::byte* world_block_ = nullptr;  // on rank 0
  ExchangedArenas exchanged_;
  PeerLiveness liveness_;
  std::unique_ptr<ProgressEngine> progress_;

  // The members below are guarded by the ProgressEngine's mutex.
  std::vector<std::shared_ptr<GroupMember>> groups_;
  std::vector<GroupMember*> leaving_;  // left, to be reaped
  std::vector<GivenUp> given_up_;
  std::vector<std::string> used_keys_;  // to be erased from the store
  GroupMember* world_ = nullptr;

  std::unique_ptr<Watcher> watcher_;
};

}  // namespace lockstep::shm
