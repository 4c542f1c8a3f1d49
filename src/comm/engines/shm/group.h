// Group: some ranks of the host with their own numbering. The engine's face to the backend: post,
// wait, done.
//
// Invariants:
//   - The first failure stands: it is written once into the group's block and every rank throws the
//     same one, once nobody writes to its tensors any more (aftermath.h). A dead group executes no
//     further segment.
//   - A member that has left posts nothing more (its flag is set after its last post), but what it
//     posted still counts.
//   - Channels of messages are made when they are first used, by the one thread that posts, under
//     the endpoint's mutex.
#pragma once

#include "comm/engines/shm/channel.h"
#include "comm/engines/shm/group_block.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/posting.h"

#include <lockstep/base/deadline.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::shm {

class Endpoint;

class Group {
 public:
  // `members`: world ranks in the group's order; `block`: where this process sees the group's
  // block.
  Group(Endpoint& endpoint, std::string name, std::vector<int> members, std::byte* block);
  ~Group();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] const GroupBlock& block() const { return block_; }
  [[nodiscard]] Endpoint& endpoint() const { return endpoint_; }

  // Takes part in the next operation of its channel and says which that is. Blocks only while the
  // ring is full (of operations under way, or of inputs that a peer has not read yet), or where
  // the call uses bytes that an earlier one must deliver first. One thread at a time.
  [[nodiscard]] CallId post(Posting& posting);
  // Returns when the operation is complete and its results are given out, or throws. Helps
  // meanwhile. Any thread.
  void wait(CallId id);
  [[nodiscard]] bool done(CallId id);

  // Sequentially consistent: a thread about to sleep asks (waiting.h).
  [[nodiscard]] bool has_failed() const {
    return block_.failure().state.load(std::memory_order_seq_cst) != SharedFailure::alive;
  }
  // Kills the group, unless something else has, and wakes everybody.
  void fail(FailureKind kind, std::string_view text);
  void fail_by_mismatch(const Channel& channel, std::uint64_t sequence, int other);
  // A segment of an operation of this group met memory that it may not touch.
  void fail_by_memory(const Channel& channel, std::uint64_t sequence, int error);
  // Executing one threw.
  void fail_by_exception(const Channel& channel, std::uint64_t sequence,
                         const std::exception& error);
  void fail_by_loss(int number, std::string_view how);
  // The process of a rank has ended, a member of this group or not; empty: its number is not known.
  void fail_by_end(int world_rank, const std::string& process);
  // Once nothing is written any more to what this rank's callers have passed (aftermath.h), or with
  // a sentence more.
  [[noreturn]] void throw_failure();

  // Before the process leaves: waits, until their deadlines and the given one, for operations in
  // which peers use its private memory, which ends with it. Kills the group when they are not
  // complete by then. `by_exception`: why this rank leaves.
  void let_peers_finish(Deadline deadline, bool by_exception) noexcept;

  // For the endpoint, under its mutex.
  void leave();
  // Before this member is `gone`: it has done with what members hold together.
  void release_hold() const;
  [[nodiscard]] bool has_left() const { return left_; }
  // After a failure: nothing of it is begun here any more, and no channel is made.
  void stop();
  [[nodiscard]] bool is_stopped() const { return stopped_; }
  [[nodiscard]] bool is_settled() const;
  // That member (a number of the group) posts nothing more.
  [[nodiscard]] bool has_departed(int number) const;
  [[nodiscard]] const std::vector<Channel*>& channels() const { return active_; }

  // The channel's first incomplete operation misses a member that will not post any more: the group
  // dies of it.
  void check_departures(const Channel& channel);
  // The same where a post waits for a slot that a member has not read: it has not posted the
  // operation either that is to be posted there.
  void check_readers(const Channel& channel);
  [[nodiscard]] std::string overdue(const Channel& channel, Duration waited) const;
  // The same for a post that waits for a slot.
  [[nodiscard]] std::string unread(const Channel& channel, Duration waited) const;

 private:
  // Makes it when it is first used.
  [[nodiscard]] Channel& open_channel(ChannelKey key);
  [[nodiscard]] Channel& channel(CallId id) { return *channels_[id.channel.index_at(rank_)]; }
  void wait(Channel& channel, std::uint64_t sequence, Duration timeout);
  void order_after_conflicts(const Channel& channel, const DataPath& path, const Posting& posting);
  // Gives out what is complete in all channels. By the thread that posts, or under active_mutex_.
  void finish_complete();
  [[nodiscard]] bool has_unfinished_besides(const Channel& channel);
  [[nodiscard]] std::string of_group() const;

  Endpoint& endpoint_;
  std::string name_;
  std::vector<int> members_;
  int rank_ = -1;
  GroupBlock block_;
  bool left_ = false;
  bool stopped_ = false;

  // By ChannelKey::index_at().
  std::vector<std::unique_ptr<Channel>> channels_;
  std::atomic<bool> has_messages_{false};
  std::mutex active_mutex_;       // for those who read active_ and do not post
  std::vector<Channel*> active_;  // those that exist

  std::once_flag settled_;  // after the failure
  std::string unsettled_;   // what could not be
};

}  // namespace lockstep::shm
