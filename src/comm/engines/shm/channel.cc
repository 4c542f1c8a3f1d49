#include "comm/engines/shm/channel.h"

#include "base/fingerprint.h"
#include "comm/engines/shm/endpoint.h"
#include "comm/engines/shm/group.h"

#include <algorithm>
#include <mutex>

namespace lockstep::shm {

Channel::Channel(Group& group, const Peers& peers, std::size_t index, ChannelMemory memory,
                 std::vector<int> ranks, int me)
    : group_(group),
      peers_(peers),
      index_(index),
      memory_(memory),
      ranks_(std::move(ranks)),
      me_(me),
      key_(fingerprint(group.name())) {
  bool has_messages = index_ > 0;
  for (int rank : ranks_) {
    if (has_messages) key_ = combine_fingerprints(key_, static_cast<std::uint64_t>(rank));
  }
  for (int rank : ranks_) world_ranks_.push_back(group.members()[rank]);
  records_ = std::make_unique<Operation[]>(static_cast<std::size_t>(memory_.depth()));
  for (int i = 0; i < memory_.depth(); ++i) records_[i].set_members(memory_.members());
}

bool Channel::is_slot_free() {
  auto depth = static_cast<std::uint64_t>(memory_.depth());
  std::uint64_t next = posted() + 1;
  if (next <= depth || !record(next).is_carried() || consumed_by_all_ >= next - depth) return true;
  consumed_by_all_ = next;
  for (int member = 0; member < memory_.members(); ++member) {
    consumed_by_all_ =
        std::min(consumed_by_all_, memory_.consumed(member).load(std::memory_order_acquire));
  }
  return consumed_by_all_ >= next - depth;
}

std::vector<int> Channel::slow_members() const {
  std::vector<int> slow;
  std::uint64_t last = posted() + 1 - static_cast<std::uint64_t>(memory_.depth());
  for (int member = 0; member < memory_.members(); ++member) {
    if (memory_.consumed(member).load(std::memory_order_acquire) < last)
      slow.push_back(ranks_[member]);
  }
  return slow;
}

std::vector<int> Channel::late_for_barrier() const {
  std::vector<int> late;
  if (completed() == posted()) return late;
  const Operation& first = record(completed() + 1);
  if (!first.is_barrier() || !first.is_planned()) return late;
  for (int member = 0; member < memory_.members(); ++member) {
    if (is_late(member)) late.push_back(ranks_[member]);
  }
  return late;
}

// A member whose process has left writes nothing any more.
bool Channel::is_late(int member) const {
  return memory_.consumed(member).load(std::memory_order_acquire) < last_carried_ &&
         !group_.endpoint().has_gone(world_ranks_[member]);
}

bool Channel::all_have_carried_out() {
  if (known_carried_out_ == last_carried_) return true;
  for (int member = 0; member < memory_.members(); ++member) {
    if (is_late(member)) return false;
  }
  known_carried_out_ = last_carried_;
  return true;
}

void Channel::fill_next(const DataPath& path, Posting& posting) {
  if (posting.is_uneven()) memory_.make_counts(peers_, me_);
  record(posted() + 1).fill(peers_, me_, posted() + 1, path, posting);
}

WakeScope Channel::post_next(const Posting& posting) {
  std::uint64_t sequence = posted() + 1;
  Operation& operation = record(sequence);
  operation.publish(peers_, memory_, me_, posting);
  posted_.store(sequence, std::memory_order_relaxed);
  PollResult result = look(operation);
  if (result != PollResult::ready) return WakeScope::nobody;
  if (operation.is_carried()) return WakeScope::waiting;
  return operation.plan().is_single() ? WakeScope::nobody : WakeScope::everybody;
}

PollResult Channel::look(Operation& operation) {
  if (operation.is_planned()) return PollResult::ready;
  PollResult result = operation.look(peers_, memory_);
  if (result == PollResult::mismatch && !group_.has_failed())
    group_.fail_by_mismatch(*this, operation.sequence(), operation.mismatched());
  return result;
}

bool Channel::must_copy_in() const { return record(posted()).is_pipelined(); }

Operation::CopyIn Channel::copy_in(bool spills) {
  return group_.has_failed() ? Operation::CopyIn::all : record(posted()).copy_in(spills);
}

bool Channel::is_done(const Operation& operation) {
  if (operation.is_barrier()) return all_have_carried_out();
  // Without segments there is nothing to do but to have posted.
  return operation.plan().total() == 0 || all_done(memory_.done(operation.sequence()),
                                                   operation.sequence(), operation.plan().total());
}

void Channel::complete(std::uint64_t sequence) {
  if (record(sequence).is_carried()) last_carried_ = sequence;
  complete_.store(sequence, std::memory_order_release);
  // No doorbell check follows: a rank that waits for this nudges this process, and a fence follows
  // there.
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
  (void)claim_next(ProgressScope::carried, none);
  stopped_ = true;
}

bool Channel::uses(Buffer buffer) const {
  if (stopped_) return false;
  std::lock_guard lock(finished_);
  for (std::uint64_t sequence = finished() + 1; sequence <= posted(); ++sequence) {
    const Staged& staged = record(sequence).staged();
    if (overlap(staged.own_input(), buffer) || overlap(staged.own_output(), buffer)) return true;
  }
  return false;
}

bool Channel::claim_next(ProgressScope scope, Task& task) {
  if (stopped_) return false;
  while (completed() < posted()) {
    Operation& operation = record(completed() + 1);
    PollResult result = look(operation);
    bool carried = operation.is_carried();
    if (result == PollResult::complete ||
        (result == PollResult::ready && !carried && is_done(operation))) {
      complete(operation.sequence());
      continue;
    }
    if (result != PollResult::ready) return false;
    if (carried) {  // also in a group that has died since: all that it needs is here
      operation.run_carried();
      complete(operation.sequence());
      continue;
    }
    if (scope == ProgressScope::carried || group_.has_failed()) return false;
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
  auto index = claim(memory_.cursor(part, operation.sequence()), operation.sequence(), segments,
                     [&](std::int64_t next) { return operation.is_available(part, next); });
  if (!index) return false;
  executing_.fetch_add(1, std::memory_order_relaxed);
  task = {this, operation.sequence(), part, *index, operation.plan().is_single()};
  return true;
}

bool Channel::execute(const Task& task, Scratch& scratch) {
  const Operation& operation = record(task.sequence);
  // A segment that is not executed is never counted, so a failed operation never looks complete.
  if (group_.has_failed()) return false;
  if (int error = operation.run(task.part, task.index, scratch)) {
    group_.fail_by_memory(*this, task.sequence, error);
    return false;
  }
  std::int64_t total = operation.plan().total();
  return count_done(memory_.done(task.sequence), task.sequence) == total;
}

void Channel::finish(std::uint64_t sequence) {
  std::lock_guard lock(finished_);
  sequence = std::min(sequence, completed());
  for (std::uint64_t next = finished() + 1; next <= sequence; ++next) {
    Operation& operation = record(next);
    operation.copy_out();
    operation.release();
    finished_.set(next);
  }
}

std::uint64_t Channel::last_in_private_memory() const {
  for (std::uint64_t sequence = posted(); sequence > completed(); --sequence) {
    if (record(sequence).staged().is_private()) return sequence;
  }
  return 0;
}

void Channel::leak_unfinished() {
  for (std::uint64_t next = completed() + 1; next <= posted(); ++next) record(next).leak();
}

std::uint64_t Channel::last_conflict(const Channel* channel, const DataPath& path,
                                     const Posting& posting) const {
  if (posted() == finished()) return 0;
  Staged::Later later{posting.input, posting.output, channel == this, path.copies_input()};
  std::lock_guard lock(finished_);
  for (std::uint64_t sequence = posted(); sequence > finished(); --sequence) {
    if (record(sequence).staged().must_precede(later)) return sequence;
  }
  return 0;
}

}  // namespace lockstep::shm
