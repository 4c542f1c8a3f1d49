// What a thread that waits in a channel finds out about the members that it waits for.
#include "comm/diagnose/report.h"
#include "comm/engines/shm/channel.h"

#include <algorithm>

namespace lockstep::shm {

std::vector<int> Channel::slow_readers() const {
  std::vector<int> slow;
  std::uint64_t last = posted() + 1 - static_cast<std::uint64_t>(memory_.depth());
  for (int member = 0; member < memory_.members(); ++member) {
    if (memory_.consumed(member).load(std::memory_order_acquire) < last)
      slow.push_back(ranks_[member]);
  }
  return slow;
}

std::vector<int> Channel::late_members(const Awaited& awaited) const {
  if (awaited.kind == Awaited::Kind::free_slot) return slow_readers();
  std::vector<int> late;
  if (completed() == posted()) return late;
  const Operation& first = record(completed() + 1);
  if (!first.is_barrier() || !first.is_planned()) return late;
  for (int member = 0; member < memory_.members(); ++member) {
    if (is_late(member)) late.push_back(ranks_[member]);
  }
  return late;
}

void Channel::check_departures(const Awaited& awaited) const {
  const std::uint64_t sequence = completed() + 1;
  for (int member = 0; sequence <= posted() && member < memory_.members(); ++member) {
    const int number = ranks_[member];
    const Slot& slot = memory_.slot(member, sequence);
    if (has_posted(slot, sequence)) continue;
    // It may have posted just before it left.
    if (!group_.has_departed(number) || has_posted(slot, sequence)) continue;
    const auto calls = posted_calls();
    diagnose::LostRank lost{
        .rank = number,
        .size = group_.size(),
        .by_exception = group_.has_left_by_exception(number),
        .status = diagnose::PeerStatus{.rank = number, .last = calls.last(member)},
        .call = calls.call(me_, sequence),
        .waiting = {group_.rank()}};
    return group_.fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, group_.names()));
  }
  if (awaited.kind == Awaited::Kind::completion) return;
  for (int number : slow_readers()) {
    if (!group_.has_departed(number)) continue;
    // It may have read, and posted, just before it left.
    auto slow = slow_readers();
    if (std::ranges::find(slow, number) == slow.end()) continue;
    const diagnose::LostRank lost{
        .rank = number,
        .size = group_.size(),
        .how = diagnose::words_of_early_end(posted() + 1, group_.rank(),
                                            group_.has_left_by_exception(number), group_.names())};
    return group_.fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, group_.names()));
  }
}

std::string Channel::overdue(const Awaited& awaited, std::span<const int> late,
                             Duration waited) const {
  if (awaited.kind == Awaited::Kind::free_slot)
    return diagnose::unread_sentence(late, memory_.depth(), group_.rank(), waited, group_.names());
  const auto sequence = completed() + 1;
  const auto call = own_call(sequence);
  if (!late.empty()) return diagnose::late_sentence(call, late, waited, group_.names());
  auto is_executing = [&](int number) {
    return group_.executes(number, execution_word(key_, sequence));
  };
  return diagnose::overdue_sentence(
      call, statuses_of(posted_calls(), group_.block(), sequence, is_executing), waited,
      group_.names());
}

}  // namespace lockstep::shm
