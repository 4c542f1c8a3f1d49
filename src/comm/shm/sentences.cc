#include "comm/shm/sentences.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/shm/control.h"

#include <algorithm>
#include <string_view>
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

std::string last_call_text(const Waited& operation, const LaneMemory& collectives, int member) {
  const Slot* last = last_call(operation.memory, member);
  if (!last) last = last_call(collectives, operation.ranks[member]);
  return last ? "its last call was " + describe(*last) : "it has made no call yet";
}

std::string_view waits(std::size_t ranks) { return ranks == 1 ? "waits" : "wait"; }

// What the missing member should have called: the other end, for a message.
std::string due_call(const Waited& operation, int caller) {
  auto text = describe(operation.memory.slot(caller, operation.sequence));
  if (text.starts_with("send #")) return "recv for " + text;
  if (text.starts_with("recv #")) return "send for " + text;
  return text;
}

std::string never_called(const Waited& operation, const LaneMemory& collectives,
                         const std::vector<int>& missing, const std::vector<int>& waiting,
                         int caller) {
  std::vector<int> names;
  names.reserve(missing.size());
  for (int member : missing) names.push_back(operation.ranks[member]);
  auto text = formatted("{} never called {} that {} {} in", rank_list(names),
                        due_call(operation, caller), rank_list(waiting), waits(waiting.size()));
  if (missing.size() == 1)
    return text + "; " + last_call_text(operation, collectives, missing.front());
  return formatted("{}; of rank {}, {}", text, names.front(),
                   last_call_text(operation, collectives, missing.front()));
}

}  // namespace

std::string mismatch_sentence(const LaneMemory& memory, std::span<const int> ranks,
                              std::uint64_t sequence, int one, int other) {
  if (other < 0) {
    return formatted("ranks disagree about who sends how much to whom in {}",
                     describe_fully(memory.slot(one, sequence)));
  }
  int first = std::min(one, other);
  int second = std::max(one, other);
  return formatted("rank {} called {} where rank {} called {}", ranks[first],
                   describe_fully(memory.slot(first, sequence)), ranks[second],
                   describe_fully(memory.slot(second, sequence)));
}

std::string overdue_sentence(const Waited& operation, const LaneMemory& collectives,
                             Duration waited,
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
  if (!missing.empty())
    return after + never_called(operation, collectives, missing, waiting, caller);
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
