// GroupMember: the part of this process in a group, as the backend uses it: post, wait, done.
// It owns this process's channels of the group.
//
// Invariants:
//   - A failure is thrown once nobody writes to this rank's tensors any more (group.cc).
//   - Channels of messages are made when they are first used, by the one thread that posts.
#pragma once

#include "comm/engines/shm/channel.h"
#include "comm/engines/shm/operation.h"
#include "comm/engines/shm/progress.h"
#include "comm/engines/shm/shared_group.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/call.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::shm {

class GroupMember {
 public:
  // As SharedGroup's.
  GroupMember(ProgressEngine& progress, const Peers& peers, const Presence& presence,
              GroupNames names, std::vector<int> members, std::byte* block);
  // Nothing of it is under way any more, or the whole endpoint ends.
  ~GroupMember();
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  [[nodiscard]] int rank() const { return shared_.rank(); }
  [[nodiscard]] int size() const { return shared_.size(); }
  [[nodiscard]] const GroupNames& names() const { return shared_.names(); }
  [[nodiscard]] const std::vector<int>& members() const { return shared_.members(); }
  [[nodiscard]] const GroupBlock& block() const { return shared_.block(); }

  // Takes part in the next operation of the call's channel, which has the number info.id. Blocks
  // only while the ring is full (of operations under way, or of inputs that a peer has not read
  // yet), or where the call uses bytes that an earlier one must deliver first. One thread at a
  // time.
  void post(const CallInfo& info, CallBuffers buffers);
  // Returns when the operation is complete and its results are given out, or throws. Helps
  // meanwhile. Any thread.
  void wait(CallId id);
  [[nodiscard]] bool done(CallId id);

  [[nodiscard]] bool has_failed() const { return shared_.has_failed(); }
  // Kills the group, unless something else has, and wakes everybody.
  void fail(FailureKind kind, std::string_view text) const { shared_.fail(kind, text); }
  // The process of a rank has ended, a member of this group or not; empty: its number is not known.
  void fail_by_end(int world_rank, const std::string& process) const;

  // Its handle is gone: this member posts nothing more.
  void leave(bool by_exception) const;
  // All that it has posted is complete: it looks at the group's block no more.
  void go() const;
  // Under the engine's mutex: nothing of it is under way, here or elsewhere.
  [[nodiscard]] bool is_settled() const;
  // No member will post any more.
  [[nodiscard]] bool is_deserted() const;
  [[nodiscard]] const std::vector<Channel*>& channels() const { return active_; }

 private:
  // Makes it when it is first used.
  [[nodiscard]] Channel& open_channel(ChannelKey key);
  [[nodiscard]] Channel& channel(CallId id) { return *channels_[id.channel.index_at(rank())]; }
  // False: the group has failed and makes no channel any more.
  [[nodiscard]] bool add_channel(ChannelKey key, ChannelMemory memory, std::vector<int> ranks);
  void wait(Channel& channel, const Awaited& awaited, Duration timeout);
  // As ProgressEngine::post(). An error leaves nothing posted, or kills the group.
  [[nodiscard]] bool post_next(Channel& channel, const CallInfo& info);
  void fail_by_error(const std::exception& error) const;
  void wait_for_conflicts(const Channel& channel, const Operands& operands, Duration timeout);
  // Gives out what is complete in all channels. By the thread that posts, or under active_mutex_.
  void finish_complete();
  [[nodiscard]] bool has_unfinished_besides(const Channel& channel);
  [[noreturn]] void throw_failure();
  // After the failure, once, from a thread that executes nothing. From when it returns nothing is
  // written any more to what callers passed to this group, by any process, apart from what the
  // returned text names ("; ..." or nothing). Blocks for a bounded time.
  [[nodiscard]] std::string settle();
  // Empty, or why what that operation writes to cannot be renewed.
  [[nodiscard]] std::string renew(Operation& operation);

  ProgressEngine& progress_;
  const SharedGroup shared_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by ChannelKey::index_at()
  std::atomic<bool> has_messages_{false};
  bool stopped_ = false;          // under the engine's mutex: no channel is made any more
  std::mutex active_mutex_;       // for those who read active_ and do not post
  std::vector<Channel*> active_;  // those that exist

  std::once_flag settled_;  // after the failure
  std::string unsettled_;   // what could not be
};

}  // namespace lockstep::shm
