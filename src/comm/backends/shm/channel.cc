#include "comm/backends/shm/channel.h"

#include "base/fingerprint.h"
#include "comm/diagnose/report.h"

#include <algorithm>

namespace lockstep::shm {

Channel::Channel(const SharedGroupState& group, ChannelKey name, ChannelMemory memory,
                 std::vector<int> ranks)
    : group_(group),
      name_(name),
      memory_(memory),
      ranks_(std::move(ranks)),
      me_(static_cast<int>(std::ranges::find(ranks_, group.rank()) - ranks_.begin())),
      key_(fingerprint(group.names().name())),
      records_(std::make_unique<Operation[]>(static_cast<std::size_t>(memory_.depth()))) {
  for (int rank : ranks_) {
    if (!name_.is_collective()) key_ = combine_fingerprints(key_, static_cast<std::uint64_t>(rank));
    world_ranks_.push_back(group.world_rank(rank));
  }
  for (int i = 0; i < memory_.depth(); ++i) records_[i].set_members(memory_.members());
}

bool Channel::is_slot_free() {
  auto depth = static_cast<std::uint64_t>(memory_.depth());
  std::uint64_t next = posted() + 1;
  if (next <= depth || !record(next).is_inline() || consumed_by_all_ >= next - depth) return true;
  consumed_by_all_ = next;
  for (int member = 0; member < memory_.members(); ++member) {
    consumed_by_all_ =
        std::min(consumed_by_all_, memory_.consumed(member).load(std::memory_order_acquire));
  }
  return consumed_by_all_ >= next - depth;
}

// A member whose process has left is not late: it writes nothing any more.
bool Channel::is_late(int member) const {
  return memory_.consumed(member).load(std::memory_order_acquire) < last_inline_ &&
         !group_.liveness().has_left(world_ranks_[member]);
}

bool Channel::have_all_run_inline() {
  if (known_run_everywhere_ == last_inline_) return true;
  for (int member = 0; member < memory_.members(); ++member) {
    if (is_late(member)) return false;
  }
  known_run_everywhere_ = last_inline_;
  return true;
}

void Channel::fill_next(const CallInfo& info, Operands&& operands) {
  if (info.is_uneven()) memory_.make_counts(peers(), me_);
  record(posted() + 1).fill(peers(), me_, info, std::move(operands));
}

WakeScope Channel::post_next(const CallInfo& info) {
  std::uint64_t sequence = posted() + 1;
  Operation& operation = record(sequence);
  operation.publish(peers(), memory_, info);
  posted_.store(sequence, std::memory_order_relaxed);
  PollResult result = poll(operation);
  if (result != PollResult::ready) return WakeScope::nobody;
  if (operation.is_inline()) return WakeScope::waiting;
  return operation.plan().is_single() ? WakeScope::nobody : WakeScope::everybody;
}

PollResult Channel::poll(Operation& operation) {
  if (operation.is_planned()) return PollResult::ready;
  PollResult result = operation.poll(peers(), memory_);
  if (result == PollResult::mismatch && !group_.has_failed())
    group_.fail(FailureKind::mismatch, difference_between(posted_calls(), operation.sequence(), me_,
                                                          operation.mismatched(), group_.names()));
  return result;
}

bool Channel::is_done(const Operation& operation) {
  if (operation.is_barrier()) return have_all_run_inline();
  // An operation without segments is done once it is posted.
  return operation.plan().total() == 0 || all_done(memory_.done(operation.sequence()),
                                                   operation.sequence(), operation.plan().total());
}

void Channel::complete(std::uint64_t sequence) {
  if (record(sequence).is_inline()) last_inline_ = sequence;
  complete_.store(sequence, std::memory_order_release);
  // No fence and doorbell check are needed here: a rank that waits for this value nudges this
  // process, and on_urge() has a fence.
  memory_.consumed(me_).store(sequence, std::memory_order_release);
}

bool Channel::misses_a_post() const {
  std::uint64_t first = completed() + 1;
  for (int member = 0; member < memory_.members(); ++member) {
    if (member != me_ && !has_posted(memory_.slot(member, first), first)) return true;
  }
  return false;
}

void Channel::stop() {
  Task none;
  (void)claim_next(ProgressScope::inline_only, none);
  stopped_ = true;
}

bool Channel::uses(Buffer buffer) const {
  if (stopped_) return false;
  std::lock_guard lock(finished_);
  for (std::uint64_t sequence = finished() + 1; sequence <= posted(); ++sequence) {
    if (record(sequence).operands().uses(buffer)) return true;
  }
  return false;
}

bool Channel::claim_next(ProgressScope scope, Task& task) {
  if (stopped_) return false;
  while (completed() < posted()) {
    Operation& operation = record(completed() + 1);
    PollResult result = poll(operation);
    bool is_inline = operation.is_inline();
    if (result == PollResult::complete ||
        (result == PollResult::ready && !is_inline && is_done(operation))) {
      complete(operation.sequence());
      continue;
    }
    if (result != PollResult::ready) return false;
    if (is_inline) {  // even if the group has failed: all inputs are here
      operation.run_inline();
      complete(operation.sequence());
      continue;
    }
    if (scope == ProgressScope::inline_only || group_.has_failed()) return false;
    if (operation.plan().is_single()) return claim_part(operation, 0, task);
    if (claim_part(operation, me_, task)) return true;
    if (scope == ProgressScope::own_part) return false;
    for (int other = 1; other < operation.plan().parts(); ++other) {
      if (claim_part(operation, (me_ + other) % operation.plan().parts(), task)) return true;
    }
    return false;
  }
  return false;
}

bool Channel::claim_part(const Operation& operation, int part, Task& task) {
  std::int64_t segments = operation.plan().segments(part);
  if (segments == 0) return false;
  auto index = claim(memory_.cursor(part, operation.sequence()), operation.sequence(), segments);
  if (!index) return false;
  executing_.fetch_add(1, std::memory_order_relaxed);
  task = {this, operation.sequence(), part, *index, operation.plan().is_single()};
  return true;
}

bool Channel::execute(const Task& task) {
  const Operation& operation = record(task.sequence);
  // A segment that is not executed is never counted, so a failed operation never looks complete.
  if (group_.has_failed()) return false;
  operation.run(task.part, task.index);
  std::int64_t total = operation.plan().total();
  return count_done(memory_.done(task.sequence), task.sequence) == total;
}

void Channel::finish(std::uint64_t sequence) {
  std::lock_guard lock(finished_);
  sequence = std::min(sequence, completed());
  for (std::uint64_t next = finished() + 1; next <= sequence; ++next) {
    Operation& operation = record(next);
    operation.operands().deliver();
    operation.release();
    finished_.set(next);
  }
}

void Channel::leak_unfinished() {
  for (std::uint64_t next = completed() + 1; next <= posted(); ++next)
    record(next).operands().leak();
}

std::uint64_t Channel::last_conflict(const Channel* channel, const Operands& operands) const {
  if (posted() == finished()) return 0;
  std::lock_guard lock(finished_);
  for (std::uint64_t sequence = posted(); sequence > finished(); --sequence) {
    if (record(sequence).operands().must_precede(operands, channel == this)) return sequence;
  }
  return 0;
}

}  // namespace lockstep::shm
