#include "apps/report/group_history.h"

#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <utility>

namespace lockstep::apps {

namespace {

std::string duration_text(double seconds) {
  return format_duration(
      std::chrono::milliseconds(static_cast<std::int64_t>(std::max(0.0, seconds) * 1000)));
}

std::string_view waits(std::size_t ranks) { return ranks == 1 ? "waits" : "wait"; }

// Returns the last call in the line that is known to be complete; the calls before it are complete
// too.
std::uint64_t completed(const std::map<std::uint64_t, const FlightCall*>& line) {
  std::uint64_t last = 0;
  for (const auto& [sequence, call] : line)
    if (call->is_done()) last = sequence;
  return last;
}

std::uint64_t last_in(const std::map<std::uint64_t, const FlightCall*>& line) {
  return line.empty() ? 0 : line.rbegin()->first;
}

}  // namespace

GroupHistory::GroupHistory(const std::vector<FlightFile>& files,
                           const std::vector<FlightPart>& parts, std::string name, double now)
    : files_(files), now_(now) {
  for (const FlightPart& one : parts) {
    const FlightFile& file = files_[one.file];
    const FlightGroup& group = file.groups[one.group];
    members_ = group.members;
    const auto place = std::find(members_.begin(), members_.end(), file.rank);
    Part part{.file = &file,
              .group = &group,
              .number = static_cast<int>(place - members_.begin()),
              .collectives = {},
              .sends = {},
              .receives = {}};
    for (std::size_t index : one.calls) {
      const FlightCall& call = file.calls[index];
      if (call.progress == "refused") continue;
      Line& line = call.call == "send"   ? part.sends[call.root]
                   : call.call == "recv" ? part.receives[call.root]
                                         : part.collectives;
      line[call.sequence] = &call;
    }
    parts_.push_back(std::move(part));
  }
  names_ = {std::move(name), members_};
}

std::string GroupHistory::ago(double time) const { return duration_text(now_ - time); }

std::vector<std::string> GroupHistory::tell() const {
  std::vector<std::string> lines;
  if (auto text = difference()) lines.push_back(*text);
  if (auto waited = open()) lines.push_back(told(*waited));
  tell_messages(lines);
  tell_failures(lines);
  if (lines.empty()) return lines;
  if (auto text = last_common()) lines.push_back(*text);
  for (std::string& line : lines) line = formatted("group {}: {}", name(), line);
  return lines;
}

std::optional<std::string> GroupHistory::difference() const {
  std::map<std::uint64_t, std::vector<const Part*>> by_sequence;
  for (const Part& part : parts_)
    for (const auto& [sequence, call] : part.collectives) by_sequence[sequence].push_back(&part);
  for (const auto& [sequence, parts] : by_sequence) {
    const FlightCall& first = *parts.front()->collectives.at(sequence);
    std::vector<int> alike, odd;
    const Part* other = nullptr;
    for (const Part* part : parts) {
      const bool same = same_call(first, *part->collectives.at(sequence));
      if (!same && other == nullptr) other = part;
      (same ? alike : odd).push_back(part->file->rank);
    }
    if (other == nullptr) continue;
    return formatted("the first difference is at #{}: {} called {}; {} called {}{}", sequence,
                     rank_list(alike), describe(first, names_), rank_list(odd),
                     describe(*other->collectives.at(sequence), names_),
                     shift(*other, *parts.front(), sequence));
  }
  return std::nullopt;
}

std::string GroupHistory::shift(const Part& odd, const Part& other, std::uint64_t at) const {
  const auto meets = [](const Line& a, std::uint64_t in_a, const Line& b, std::uint64_t in_b) {
    const auto one = a.find(in_a), two = b.find(in_b);
    return one != a.end() && two != b.end() && same_call(*one->second, *two->second);
  };
  if (meets(odd.collectives, at, other.collectives, at + 1))
    return formatted("; it seems that rank {} skipped a call, or that rank {} made an extra one",
                     odd.file->rank, other.file->rank);
  if (meets(odd.collectives, at + 1, other.collectives, at))
    return formatted("; it seems that rank {} skipped a call, or that rank {} made an extra one",
                     other.file->rank, odd.file->rank);
  return {};
}

std::optional<GroupHistory::Open> GroupHistory::open() const {
  Open found;
  for (const Part& part : parts_) {
    for (const auto& [sequence, call] : part.collectives) {
      if (!call->is_waited_in() || sequence < completed(part.collectives)) continue;
      if (found.sequence == 0 || sequence < found.sequence) found.sequence = sequence;
    }
  }
  if (found.sequence == 0) return std::nullopt;
  for (const Part& part : parts_) {
    const auto call = part.collectives.find(found.sequence);
    if (call == part.collectives.end()) {
      if (last_in(part.collectives) < found.sequence) found.missing.push_back(part.file->rank);
    } else if (call->second->is_waited_in()) {
      found.waiting.push_back(part.file->rank);
      if (found.call == nullptr || call->second->posted < found.since) {
        found.call = call->second;
        found.since = call->second->posted;
      }
    }
  }
  return found;
}

std::string GroupHistory::told(const Open& open) const {
  auto text = formatted("{} {} in {} for {}", rank_list(open.waiting), waits(open.waiting.size()),
                        describe(*open.call, names_), ago(open.since));
  for (int rank : open.missing)
    text += formatted("; rank {} never called it: {}", rank, last_of(rank));
  std::set<int> present;
  for (const Part& part : parts_) present.insert(part.file->rank);
  std::vector<int> silent;
  std::copy_if(members_.begin(), members_.end(), std::back_inserter(silent),
               [&](int member) { return !present.contains(member); });
  if (!silent.empty())
    text += formatted("; there is no record of {}", rank_list(silent));
  else if (open.missing.empty())
    text += "; every rank has made the call with that number";
  return text;
}

std::string GroupHistory::last_of(int rank) const {
  for (const FlightFile& file : files_) {
    if (file.rank != rank) continue;
    if (file.calls.empty()) return "it has made no call yet";
    const FlightCall& last = file.calls.back();
    const FlightGroup& group = file.groups[last.group];
    const GroupNames names(group.name, group.members);
    const auto of_group =
        group.name == name() ? std::string() : formatted(" of group {}", group.name);
    if (last.is_done() || last.progress == "refused")
      return formatted("its last call, {}{}, ended {} before", describe(last, names), of_group,
                       ago(last.ended));
    return formatted("it is in {}{}, for {}", describe(last, names), of_group, ago(last.posted));
  }
  return "it left no record";
}

std::optional<std::string> GroupHistory::last_common() const {
  std::uint64_t common = ~std::uint64_t{0};
  for (const Part& part : parts_) common = std::min(common, completed(part.collectives));
  if (parts_.empty() || common == 0) return "the records show no call that all ranks completed";
  const FlightCall* last = nullptr;
  for (const Part& part : parts_) {
    const auto call = part.collectives.find(common);
    if (call == part.collectives.end()) continue;
    if (last == nullptr || call->second->ended > last->ended) last = call->second;
  }
  if (last == nullptr)
    return formatted("all ranks completed #{}, which is too old to be in the records", common);
  const auto when = last->ended > 0 ? formatted(", {} before", ago(last->ended)) : std::string();
  return formatted("the last call that all ranks completed: {}{}", describe(*last, names_), when);
}

void GroupHistory::tell_messages(std::vector<std::string>& lines) const {
  const auto tell_open = [&](const Part& part, int peer, const Line& line, bool sends) {
    const auto first = std::find_if(line.begin(), line.end(), [&](const auto& entry) {
      return entry.first > completed(line) && entry.second->is_waited_in();
    });
    if (first == line.end()) return;
    const auto other = std::find_if(parts_.begin(), parts_.end(),
                                    [&](const Part& one) { return one.number == peer; });
    auto text = formatted("rank {} waits in {} for {}", part.file->rank,
                          describe(*first->second, names_), ago(first->second->posted));
    if (other == parts_.end()) {
      lines.push_back(text + "; there is no record of its peer");
      return;
    }
    const auto& theirs = sends ? other->receives : other->sends;
    const auto route = theirs.find(part.number);
    const auto match =
        route == theirs.end() ? Line::const_iterator() : route->second.find(first->first);
    const int rank = other->file->rank;
    if (route == theirs.end() || match == route->second.end()) {
      lines.push_back(formatted("{}; rank {} never called {} for it: {}", text, rank,
                                sends ? "recv" : "send", last_of(rank)));
    } else if (!same_call(*first->second, *match->second)) {
      lines.push_back(formatted("{}; rank {} called {}, which does not match it", text, rank,
                                describe(*match->second, names_)));
    } else {
      lines.push_back(text + formatted("; rank {} called the other end", rank));
    }
  };
  for (const Part& part : parts_) {
    for (const auto& [peer, line] : part.sends) tell_open(part, peer, line, true);
    for (const auto& [peer, line] : part.receives) tell_open(part, peer, line, false);
  }
}

void GroupHistory::tell_failures(std::vector<std::string>& lines) const {
  std::map<std::string, std::vector<int>> by_text;
  for (const Part& part : parts_)
    if (!part.group->failure.empty()) by_text[part.group->failure].push_back(part.file->rank);
  for (auto& [text, ranks] : by_text) {
    std::sort(ranks.begin(), ranks.end());
    lines.push_back(
        formatted("{} {} told: {}", rank_list(ranks), ranks.size() == 1 ? "was" : "were", text));
  }
}

}  // namespace lockstep::apps
