// GroupMember: this process's part in a group, with the functions that the backend needs: post,
// wait, done. It owns this process's channels of the group.
//
// Invariants:
//   - A failure is thrown only after all writes to this rank's tensors have ended.
//   - The posting thread makes a channel of messages when it is first used.
#pragma once

#include "comm/backends/shm/channel.h"
#include "comm/backends/shm/operation.h"
#include "comm/backends/shm/progress.h"
#include "comm/backends/shm/shared_group_state.h"

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
  // Parameters as for SharedGroupState.
  GroupMember(ProgressEngine& progress, const PeerMappings& peers, const PeerLiveness& liveness,
              GroupNames names, std::vector<int> members, std::byte* block);
  // Destroy it only if no operation of the group is under way, or the whole endpoint ends.
  ~GroupMember();
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;

  [[nodiscard]] int rank() const { return shared_.rank(); }
  [[nodiscard]] int size() const { return shared_.size(); }
  [[nodiscard]] const GroupNames& names() const { return shared_.names(); }
  [[nodiscard]] const std::vector<int>& members() const { return shared_.members(); }
  [[nodiscard]] const GroupBlock& block() const { return shared_.block(); }

  // Posts the next operation of the call's channel, with the number info.id. Blocks only if the
  // ring is full (of incomplete operations, or of inputs that a peer has not read yet), or if the
  // call uses bytes that an earlier operation must deliver first. Call it from one thread at a
  // time.
  void post(const CallInfo& info, CallBuffers buffers);
  // Blocks until the operation is complete and its results are delivered, and executes segments
  // meanwhile. Throws the group's error. Thread-safe.
  void wait(CallId id);
  [[nodiscard]] bool done(CallId id);

  [[nodiscard]] bool has_failed() const { return shared_.has_failed(); }
  // If the group has not failed yet, fails it and wakes all threads that wait in it.
  void fail(FailureKind kind, std::string_view text) const { shared_.fail(kind, text); }
  // Handles the end of a rank's process, which need not be a member of this group. `process` is
  // empty if its number is not known.
  void fail_by_end(int world_rank, const std::string& process) const;

  // Called when the group's handle is gone: this member posts nothing more.
  void leave(bool by_exception) const;
  // Called when all posted operations of this member are complete: from then on it does not read
  // the group's block.
  void go() const;
  // Returns true if no operation of the group is under way, here or elsewhere. Under the
  // ProgressEngine's mutex.
  [[nodiscard]] bool is_settled() const;
  // Returns true if no member will post any more.
  [[nodiscard]] bool is_deserted() const;
  [[nodiscard]] const std::vector<Channel*>& channels() const { return active_; }

 private:
  // Returns the channel of `key`; makes the channel when it is first used.
  [[nodiscard]] Channel& open_channel(ChannelKey key);
  [[nodiscard]] Channel& channel(CallId id) { return *channels_[id.channel.index_at(rank())]; }
  // Returns false if the group has failed, so that no channel is made any more.
  [[nodiscard]] bool add_channel(ChannelKey key, ChannelMemory memory, std::vector<int> ranks);
  void wait(Channel& channel, const Awaited& awaited, Duration timeout);
  // Like ProgressEngine::post(). If it throws, nothing was posted or the group has failed.
  [[nodiscard]] bool post_next(Channel& channel, const CallInfo& info);
  void fail_by_error(const std::exception& error) const;
  void wait_for_conflicts(const Channel& channel, const Operands& operands, Duration timeout);
  void stage(Channel& channel, Operands& operands, Duration timeout);
  // Delivers complete operations of all channels. Called by the posting thread, or under
  // active_mutex_.
  void finish_complete();
  [[nodiscard]] bool has_unfinished_besides(const Channel& channel);
  [[noreturn]] void throw_failure();
  // Called once after the failure, from a thread that executes nothing. After settle() returns, no
  // process writes to buffers that callers passed to this group, except to buffers that the
  // returned text names ("; ..." or empty). Blocks for a bounded time.
  [[nodiscard]] std::string settle();
  // Gives the output of `operation` fresh memory. Returns the empty string, or why that is
  // impossible.
  [[nodiscard]] std::string renew(Operation& operation);

  ProgressEngine& progress_;
  const SharedGroupState shared_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by ChannelKey::index_at()
  std::atomic<bool> has_messages_{false};
  bool stopped_ = false;          // under the ProgressEngine's mutex: no channel is made any more
  std::mutex active_mutex_;       // for threads that read active_ without posting
  std::vector<Channel*> active_;  // the existing channels

  std::once_flag settled_;  // after the failure
  std::string unsettled_;   // the result of settle()
};

}  // namespace lockstep::shm
