#include "comm/backends/shm/channel_report.h"

#include "comm/backends/shm/channel.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace lockstep::shm {
namespace {

constexpr int sender = 0;
constexpr int receiver = 1;

// Returns the latest slot of a member; null if it has posted nothing.
const Slot* last_slot(const ChannelMemory& memory, int member) {
  const Slot* last = nullptr;
  for (int i = 0; i < memory.depth(); ++i) {
    const Slot& slot = memory.slot(member, static_cast<std::uint64_t>(i));
    if (sequence_in(slot) > (last ? sequence_in(*last) : 0)) last = &slot;
  }
  return last;
}

std::uint64_t last_sequence(const ChannelMemory& memory, int member) {
  const Slot* last = last_slot(memory, member);
  return last ? sequence_in(*last) : 0;
}

// Returns the channel of the messages between two members of a group, if it exists.
std::optional<PostedCalls> messages_between(const PeerMappings& peers, const GroupBlock& block,
                                            const std::array<int, 2>& ranks) {
  auto memory = block.messages(peers, ranks[sender], ranks[receiver]);
  if (!memory) return std::nullopt;
  return PostedCalls{peers, *memory, ranks, true};
}

// Returns a message of a member whose peer has not posted the other end, if there is one.
std::optional<CallRecord> unmet_message(const PeerMappings& peers, const GroupBlock& block,
                                        int number) {
  for (int other = 0; other < block.collectives().members(); ++other) {
    for (int end : {sender, receiver}) {
      const std::array<int, 2> ranks =
          end == sender ? std::array{number, other} : std::array{other, number};
      auto messages = messages_between(peers, block, ranks);
      if (messages &&
          last_sequence(messages->memory, 1 - end) < last_sequence(messages->memory, end))
        return messages->last(end);
    }
  }
  return std::nullopt;
}

// Returns two members of an uneven all_to_all of which the first sends a count that the second does
// not expect.
std::pair<int, int> unlike_pair(const PostedCalls& calls, std::uint64_t sequence) {
  auto counts = [&](int member) { return calls.memory.counts(calls.peers, member); };
  for (int from = 0; from < calls.memory.members(); ++from) {
    for (int to = 0; to < calls.memory.members(); ++to) {
      auto sent = counts(from).sends(to, sequence).load(std::memory_order_relaxed);
      auto due = counts(to).expects(from, sequence).load(std::memory_order_relaxed);
      if (sent != due) return {from, to};
    }
  }
  return {0, 0};
}

}  // namespace

CallRecord PostedCalls::call(int member, std::uint64_t sequence) const {
  const Slot& slot = memory.slot(member, sequence);
  auto call = record_in(slot);
  call.number = sequence;
  if (has_messages) call.root = ranks[1 - member];
  const bool is_uneven = is_uneven_in(slot);
  if (has_equal_parts(call.collective, is_uneven)) call.elements *= memory.members();
  if (!is_uneven) return call;
  const auto counts = memory.counts(peers, member);
  for (int other = 0; other < memory.members(); ++other) {
    if (call.collective != Collective::all_gather)
      call.input_counts.push_back(counts.sends(other, sequence).load(std::memory_order_relaxed));
    if (call.collective != Collective::reduce_scatter)
      call.output_counts.push_back(counts.expects(other, sequence).load(std::memory_order_relaxed));
  }
  return call;
}

std::optional<CallRecord> PostedCalls::last(int member) const {
  const auto sequence = last_sequence(memory, member);
  if (sequence == 0) return std::nullopt;
  return call(member, sequence);
}

std::string difference_between(const PostedCalls& calls, std::uint64_t sequence, int one, int other,
                               const GroupNames& group) {
  if (other < 0) std::tie(one, other) = unlike_pair(calls, sequence);
  return diagnose::mismatch_sentence(calls.call(one, sequence), calls.ranks[one],
                                     calls.call(other, sequence), calls.ranks[other], group);
}

std::vector<diagnose::PeerStatus> statuses_of(const PostedCalls& calls, const GroupBlock& block,
                                              std::uint64_t sequence,
                                              const std::function<bool(int rank)>& is_executing) {
  std::vector<diagnose::PeerStatus> statuses;
  for (int member = 0; member < calls.memory.members(); ++member) {
    const int number = calls.ranks[member];
    diagnose::PeerStatus status{.rank = number, .has_called = calls.has_posted(member, sequence)};
    status.is_executing = status.has_called && is_executing(number);
    status.last = calls.last(member);
    status.last_is_of_channel = status.last.has_value();
    if (!status.last) {
      std::vector<int> all(static_cast<std::size_t>(block.collectives().members()));
      status.last = PostedCalls{calls.peers, block.collectives(), all}.last(number);
    }
    if (!status.has_called) status.unmet = unmet_message(calls.peers, block, number);
    statuses.push_back(std::move(status));
  }
  return statuses;
}

diagnose::LostRank lost_rank(const PostedCalls& collectives, int member) {
  diagnose::LostRank lost{.rank = collectives.ranks[member], .size = collectives.memory.members()};
  lost.status = diagnose::PeerStatus{.rank = lost.rank, .last = collectives.last(member)};
  const auto next = lost.status->last_number() + 1;
  for (int other = 0; other < collectives.memory.members(); ++other) {
    if (sequence_in(collectives.memory.slot(other, next)) != next) continue;
    lost.waiting.push_back(collectives.ranks[other]);
    lost.call = collectives.call(other, next);
  }
  return lost;
}

// Channel's functions that report on the members that a thread waits for.

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
    // Check again: it may have posted just before it left.
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
    // Check again: it may have read the inputs just before it left.
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
