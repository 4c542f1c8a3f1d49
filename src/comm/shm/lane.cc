#include "comm/shm/lane.h"

#include <lockstep/base/fingerprint.h>

#include "comm/shm/group.h"

#include <algorithm>

namespace lockstep::shm {

Lane::Lane(Group& group, const Peers& peers, std::size_t index, LaneMemory memory,
           std::vector<int> ranks, int me)
    : group_(group),
      peers_(peers),
      index_(index),
      memory_(memory),
      ranks_(std::move(ranks)),
      me_(me),
      key_(combine_fingerprints(fingerprint(group.name()), index)) {
  for (int rank : ranks_) world_ranks_.push_back(group.members()[rank]);
  records_ = std::make_unique<Operation[]>(static_cast<std::size_t>(memory_.depth()));
  for (int i = 0; i < memory_.depth(); ++i) records_[i].set_members(memory_.members());
}

void Lane::fill_next(Posting& posting) {
  record(posted() + 1).fill(peers_, me_, posted() + 1, posting);
}

bool Lane::post_next(const Posting& posting) {
  std::uint64_t sequence = posted() + 1;
  Operation& operation = record(sequence);
  operation.publish(memory_, me_, posting);
  posted_.store(sequence, std::memory_order_relaxed);
  Sight sight = look(operation);
  if (sight != Sight::ready) return false;
  return !operation.plan().is_single();
}

Sight Lane::look(Operation& operation) {
  if (operation.is_planned()) return Sight::ready;
  Sight sight = operation.look(peers_, memory_);
  if (sight == Sight::mismatch && !group_.has_failed())
    group_.fail_by_mismatch(*this, operation.sequence(), operation.mismatched());
  return sight;
}

bool Lane::is_done(const Operation& operation) const {
  // Without segments there is nothing to do but to have posted.
  return operation.plan().total() == 0 || all_done(memory_.done(operation.sequence()),
                                                   operation.sequence(), operation.plan().total());
}

bool Lane::claim_next(Appetite appetite, Task& task) {
  while (completed() < posted()) {
    Operation& operation = record(completed() + 1);
    Sight sight = look(operation);
    if (sight == Sight::complete || (sight == Sight::ready && is_done(operation))) {
      complete_.store(operation.sequence(), std::memory_order_release);
      continue;
    }
    if (sight != Sight::ready || group_.has_failed()) return false;
    if (operation.plan().is_single()) return claim_part(operation, 0, task);
    if (claim_part(operation, me_, task)) return true;
    if (appetite == Appetite::own_part) return false;
    for (int other = 1; other < operation.plan().parts(); ++other) {
      if (claim_part(operation, (me_ + other) % operation.plan().parts(), task)) return true;
    }
    return false;
  }
  return false;
}

bool Lane::claim_part(const Operation& operation, int part, Task& task) {
  std::int64_t segments = operation.plan().segments(part);
  if (segments == 0) return false;
  auto index = claim(memory_.cursor(part, operation.sequence()), operation.sequence(), segments);
  if (!index) return false;
  executing_.fetch_add(1, std::memory_order_relaxed);
  task = {this, operation.sequence(), part, *index, operation.plan().is_single()};
  return true;
}

bool Lane::execute(const Task& task) {
  const Operation& operation = record(task.sequence);
  bool complete = false;
  // A segment that is not executed is never counted, so a failed operation never looks complete.
  if (!group_.has_failed()) {
    operation.run(task.part, task.index);
    std::int64_t total = operation.plan().total();
    complete = count_done(memory_.done(task.sequence), task.sequence) == total;
  }
  return complete;
}

void Lane::finish(std::uint64_t sequence) {
  std::lock_guard lock(finish_mutex_);
  sequence = std::min(sequence, completed());
  for (std::uint64_t next = finished() + 1; next <= sequence; ++next) {
    Operation& operation = record(next);
    operation.staged().take_out();
    operation.release();
    finished_.store(next, std::memory_order_release);
  }
}

void Lane::pin_unfinished() {
  for (std::uint64_t next = completed() + 1; next <= posted(); ++next) record(next).staged().pin();
}

std::uint64_t Lane::last_conflict(const Lane* lane, Buffer input, Buffer output) const {
  if (posted() == finished()) return 0;
  std::lock_guard lock(finish_mutex_);
  for (std::uint64_t sequence = posted(); sequence > finished(); --sequence) {
    if (record(sequence).staged().must_precede(input, output, lane == this)) return sequence;
  }
  return 0;
}

}  // namespace lockstep::shm
