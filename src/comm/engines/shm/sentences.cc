#include "comm/engines/shm/sentences.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/engines/shm/control.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::shm {
namespace {

// The latest call of a member; null when it has made none.
const Slot* last_call(const LaneMemory& memory, int member) {
  const Slot* last = nullptr;
  for (int i = 0; i < memory.depth(); ++i) {
    const Slot& slot = memory.slot(member, static_cast<std::uint64_t>(i));
    if (sequence_in(slot) > (last ? sequence_in(*last) : 0)) last = &slot;
  }
  return last;
}

// A message of a member that its peer has not met; null where there is none.
const Slot* open_message(const Peers& peers, const GroupBlock& block, int number) {
  constexpr int sender = 0;
  constexpr int receiver = 1;
  auto beyond = [](const std::optional<LaneMemory>& lane, int own, int peer) -> const Slot* {
    if (!lane) return nullptr;
    const Slot* last = last_call(*lane, own);
    const Slot* met = last_call(*lane, peer);
    return last && (!met || sequence_in(*met) < sequence_in(*last)) ? last : nullptr;
  };
  int members = block.collectives().members();
  for (int other = 0; other < members; ++other) {
    if (const Slot* sent = beyond(block.messages(peers, number, other), sender, receiver))
      return sent;
    if (const Slot* due = beyond(block.messages(peers, other, number), receiver, sender))
      return due;
  }
  return nullptr;
}

std::string last_call_text(const Waited& operation, const GroupBlock& block, int member) {
  const Slot* last = last_call(operation.memory, member);
  if (!last) last = last_call(block.collectives(), operation.ranks[member]);
  const Slot* open = open_message(operation.peers, block, operation.ranks[member]);
  auto pending = open ? describe(*open) + ", which its peer has not met" : "";
  if (!last && open) return "it has called " + pending;
  if (!last) return "it has made no call yet";
  auto text = "its last call was " + describe(*last);
  return open ? text + "; it has called " + pending : text;
}

std::string_view waits(std::size_t ranks) { return ranks == 1 ? "waits" : "wait"; }

// What the missing member should have called: the other end, for a message.
std::string due_call(const Waited& operation, int caller) {
  auto text = describe(operation.memory.slot(caller, operation.sequence));
  if (text.starts_with("send #")) return "recv for " + text;
  if (text.starts_with("recv #")) return "send for " + text;
  return text;
}

std::string never_called(const Waited& operation, const GroupBlock& block,
                         const std::vector<int>& missing, const std::vector<int>& waiting,
                         int caller) {
  std::vector<int> names;
  names.reserve(missing.size());
  for (int member : missing) names.push_back(operation.ranks[member]);
  auto text = formatted("{} never called {} that {} {} in", rank_list(names),
                        due_call(operation, caller), rank_list(waiting), waits(waiting.size()));
  if (missing.size() == 1) return text + "; " + last_call_text(operation, block, missing.front());
  return formatted("{}; of rank {}, {}", text, names.front(),
                   last_call_text(operation, block, missing.front()));
}

// What two members posted for one operation, told apart.
struct Posts {
  const Peers& peers;
  const LaneMemory& memory;
  std::span<const int> ranks;
  std::uint64_t sequence;

  [[nodiscard]] std::string describe(int member, int other) const {
    return describe_fully(memory.slot(member, sequence), counts_that_differ(member, other));
  }

 private:
  // Of the counts that `member` passed, those that make its call another than that of `other`.
  [[nodiscard]] std::string counts_that_differ(int member, int other) const {
    auto call = agreement_in(memory.slot(member, sequence));
    auto theirs = agreement_in(memory.slot(other, sequence));
    if (!call.uneven || !theirs.uneven || call.collective != theirs.collective) return {};
    if (call.collective == Collective::all_to_all)
      return formatted("{} to rank {}, {} from it", count(&CountsMemory::sends, member, other),
                       ranks[other], count(&CountsMemory::expects, member, other));
    auto given = call.collective == Collective::reduce_scatter ? &CountsMemory::sends
                                                               : &CountsMemory::expects;
    for (int part = 0; part < memory.members(); ++part) {
      if (auto own = count(given, member, part); own != count(given, other, part))
        return formatted("{} of rank {}", own, ranks[part]);
    }
    return {};
  }

  [[nodiscard]] std::int64_t count(decltype(&CountsMemory::sends) of, int member, int other) const {
    return (memory.counts(peers, member).*of)(other, sequence).load(std::memory_order_relaxed);
  }
};

// Two members of an uneven all_to_all of whom one sends something else than the other expects.
std::pair<int, int> unlike_pair(const Peers& peers, const LaneMemory& memory,
                                std::uint64_t sequence) {
  for (int from = 0; from < memory.members(); ++from) {
    for (int to = 0; to < memory.members(); ++to) {
      auto sent = memory.counts(peers, from).sends(to, sequence).load(std::memory_order_relaxed);
      auto due = memory.counts(peers, to).expects(from, sequence).load(std::memory_order_relaxed);
      if (sent != due) return {from, to};
    }
  }
  return {0, 0};
}

}  // namespace

std::string mismatch_sentence(const Peers& peers, const LaneMemory& memory,
                              std::span<const int> ranks, std::uint64_t sequence, int one,
                              int other) {
  if (other < 0) std::tie(one, other) = unlike_pair(peers, memory, sequence);
  Posts posts{peers, memory, ranks, sequence};
  int first = std::min(one, other);
  int second = std::max(one, other);
  return formatted("rank {} called {} where rank {} called {}", ranks[first],
                   posts.describe(first, second), ranks[second], posts.describe(second, first));
}

std::string overdue_sentence(const Waited& operation, const GroupBlock& block, Duration waited,
                             const std::function<bool(int, std::uint64_t)>& is_executing) {
  std::vector<int> missing;
  std::vector<int> waiting;
  std::vector<int> executing;
  int caller = 0;
  for (int member = 0; member < operation.memory.members(); ++member) {
    int number = operation.ranks[member];
    if (!has_posted(operation.memory.slot(member, operation.sequence), operation.sequence)) {
      missing.push_back(member);
      continue;
    }
    caller = member;
    waiting.push_back(number);
    if (is_executing(number, execution_word(operation.lane_key, operation.sequence)))
      executing.push_back(number);
  }
  auto after = formatted("after {}: ", format_duration(waited));
  if (!missing.empty()) return after + never_called(operation, block, missing, waiting, caller);
  auto call = describe(operation.memory.slot(caller, operation.sequence));
  if (executing.empty())
    return formatted("{}all ranks called {}, but it is not complete", after, call);
  return formatted("{}{} began a part of {} and did not finish it", after, rank_list(executing),
                   call);
}

std::string lost_sentence(const LaneMemory& collectives, int member) {
  const Slot* last = last_call(collectives, member);
  std::string text = last ? "its last call was " + describe(*last) : "it had made no call yet";
  std::uint64_t next = (last ? sequence_in(*last) : 0) + 1;
  std::vector<int> waiting;
  for (int other = 0; other < collectives.members(); ++other) {
    if (sequence_in(collectives.slot(other, next)) == next) waiting.push_back(other);
  }
  if (waiting.empty()) return text;
  return formatted("{}; {} {} in {}", text, rank_list(waiting), waits(waiting.size()),
                   describe(collectives.slot(waiting.front(), next)));
}

}  // namespace lockstep::shm
