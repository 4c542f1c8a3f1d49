// Endpoint: one process's part in the ranks of its host. It owns the arena, the mappings of the
// peers', the groups, and the threads that watch and help. One a backend family, shared by its
// handles; nothing here is global.
//
// Invariants:
//   - mutex_ guards what threads of this process share about progress: the list of busy channels,
//     the channels' records and the list of groups. It is held for claims and posts, never while
//     bytes are moved or a thread sleeps.
//   - A thread that has claimed a segment executes it without any lock; the claim keeps operation,
//     record and group alive.
//   - A group outlives its handle until everything it has posted is complete, or, after an error,
//     until the endpoint ends: a peer that is stopped may still execute. A thread that uses a group
//     without its handle and without mutex_ shares its ownership. The block is freed by the member
//     that made it when all are gone; a thread whose group is being reaped does not touch it.
//   - In a forked child nothing of this is used or destroyed: what it shares with the parent is the
//     parent's.
#pragma once

#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/channel.h"
#include "comm/engines/shm/execution_marks.h"
#include "comm/engines/shm/group.h"
#include "comm/engines/shm/hand_over.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/transfer.h"
#include "comm/engines/shm/waiting.h"
#include "comm/engines/shm/watcher.h"
#include "comm/rendezvous/grace_period.h"
#include "sys/own_process.h"
#include "sys/thread.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::shm {

struct EndpointOptions {
  Duration timeout = std::chrono::minutes(10);  // of making a group
  Duration join_timeout = std::chrono::minutes(5);
  std::size_t arena_bytes = 1 << 30;  // address space
  // Whether peers may read and write this process's private memory, where the system lets them.
  bool share_private_memory = true;
};

class Endpoint {
 public:
  // Blocks until all ranks have arrived.
  Endpoint(std::shared_ptr<Store> store, int rank, int size, EndpointOptions options);
  // Leaves in order. Waits (grace_period.h) for peers that use this process's private memory, or
  // will in what it has posted; the groups where they are not done by then die.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] const Peers& peers() const { return handed_over_.peers; }
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return arena_; }

  // The groups stay the endpoint's; leave() says that a group's handle is gone, and waits for
  // nobody.
  [[nodiscard]] Group& world() { return *world_; }
  // All `members` (world ranks) call with the same unique name. Throws PeerLost when one of them
  // has ended, and BadInput on all of them when the first has no room for the group's block.
  [[nodiscard]] Group& make_group(const std::string& name, std::vector<int> members);
  void leave(Group& group);
  // A call of the group failed that had allocated this block for its members to take: it is free
  // again when those that did have let go, and the others have left the group.
  void give_up(Group& group, std::byte* held);

  // For groups and channels.
  void post(Channel& channel, const Posting& posting);
  void wait(Channel& channel, std::uint64_t sequence, Duration timeout);
  // Asks the members for which a barrier of that channel waits to look; their numbers in the group.
  std::vector<int> urge_late(const Channel& channel);
  // Until every member has read what the slot of the channel's next operation carried last.
  void wait_for_slot(Channel& channel, Duration timeout);
  // Executes one segment if there is one to be had.
  bool progress(ProgressScope scope);
  // The same where nobody could be told that there is no memory for it: says so and tries no more.
  bool try_progress(ProgressScope scope) noexcept;
  void ring(std::span<const int> world_ranks, bool helpers = true);
  void add_channel(const std::function<void()>& add);
  // It posts nothing more, in no group.
  [[nodiscard]] bool has_departed(int world_rank) const {
    return peers().control(world_rank).left.load(std::memory_order_seq_cst) != Control::present;
  }
  // It neither posts nor carries anything out any more.
  [[nodiscard]] bool has_gone(int world_rank) const {
    return peers().control(world_rank).left.load(std::memory_order_seq_cst) == Control::gone;
  }
  [[nodiscard]] const ExecutionMarks& marks() const { return marks_; }

  // For the aftermath of a failure (aftermath.h).
  // From here on no thread of this process begins anything of that group.
  void stop(Group& group);
  // Whether that process may still execute something: it has not ended, as far as is known.
  [[nodiscard]] bool is_alive(int world_rank);
  // Whether operations under way in other groups use bytes of that buffer.
  [[nodiscard]] bool is_used_besides(const Group& group, Buffer buffer);

 private:
  struct OwnBlock {
    std::byte* data;
    int members;
    std::string key;  // in the store, where the other members look for it
  };
  struct GivenUp {
    std::shared_ptr<Group> group;
    std::byte* held;
  };

  [[nodiscard]] std::byte* make_block(int members, std::string key = {});
  // For a group whose first member this rank is. The others hear of it when that fails.
  [[nodiscard]] std::byte* make_own_block(const std::string& key, const std::string& name,
                                          std::span<const int> members);
  // Says under the group's key why it cannot be made.
  void refuse(const std::string& key, const std::string& why) noexcept;
  // Of groups that all members have left.
  void erase_used_keys();
  [[nodiscard]] Group& add_group(const std::string& name, std::vector<int> members,
                                 std::byte* block);
  // Throws PeerLost unless all of them can take part in a new group.
  void check_alive(const std::string& name, std::span<const int> members) const;
  // Where the first member has put the group's block, in its arena.
  [[nodiscard]] std::uint64_t find_block(const std::string& key, const std::string& name,
                                         std::span<const int> members);
  // Claims a segment and marks it, if there is a place for the mark.
  [[nodiscard]] std::optional<std::size_t> claim(ProgressScope scope, Channel::Task& task);
  [[nodiscard]] bool claim_of_busy(ProgressScope scope, Channel::Task& task);
  [[nodiscard]] SpinPolicy spin_policy();
  [[nodiscard]] std::size_t mark_copying_in(const Channel& channel);
  void execute(const Channel::Task& task, std::size_t place);
  // Copies in what was posted last, segment by segment, and works on it meanwhile.
  void copy_in(Channel& channel);
  // Makes progress until is_over(), or throws. overdue(waited) is the sentence of a deadline.
  template <typename IsOver, typename Overdue, typename BeforeSleep>
  void wait_until(Channel& channel, Duration timeout, IsOver&& is_over, Overdue&& overdue,
                  BeforeSleep&& before_sleep);
  // Whether progress() would find nothing, as far as can be seen without the mutex: no other
  // channel has work, and this one waits for posts.
  [[nodiscard]] bool has_nothing_but(const Channel& channel) const;
  // Whether this process can read and write the private memory of all peers, and gains by it.
  [[nodiscard]] bool reaches_peers() const;
  void nudge_members(const Channel& channel, std::span<const int> members);
  void on_peer_end(int rank);
  void on_nudge(int rank);
  // They may be reaped meanwhile.
  [[nodiscard]] std::vector<std::shared_ptr<Group>> all_groups();
  // Ends the groups that have left and whose operations are complete, and frees the blocks that
  // nobody uses any more.
  void reap();
  [[nodiscard]] bool is_deserted(const Group& group) const;
  void help();

  const sys::OwnProcess process_;
  const rendezvous::GracePeriod grace_;
  std::shared_ptr<Store> store_;
  EndpointOptions options_;
  std::shared_ptr<Arena> arena_;
  std::string prefix_;
  std::vector<OwnBlock> own_blocks_;  // those this rank made; guarded by mutex_ once groups exist
  std::byte* world_block_ = nullptr;  // on rank 0
  HandOver handed_over_;
  ExecutionMarks marks_;
  bool has_core_ = true;  // as many cores as ranks
  YieldBudget cores_;

  std::mutex mutex_;
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<Group*> leaving_;                 // those that have left and are to be reaped
  std::atomic<std::size_t> leaving_groups_{0};  // how many; for a look without the mutex
  std::vector<GivenUp> given_up_;
  std::vector<std::string> used_keys_;         // to be erased from the store
  std::vector<Channel*> busy_;                 // channels with operations under way
  std::atomic<std::size_t> busy_channels_{0};  // how many; for a look without the mutex
  std::vector<char> lost_;
  std::array<Scratch, Control::executing_slots> scratches_;  // one a place of a mark
  Group* world_ = nullptr;

  std::atomic<bool> stopping_{false};
  std::unique_ptr<Watcher> watcher_;
  sys::Thread helper_;
};

}  // namespace lockstep::shm
