// lockstep-report: `lockstep report hang FILE...`.
#include "apps/report/flight_file.h"
#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/call/record.h"
#include "sys/program.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::apps;

// Combines the records of several ranks for one group: where they first differ, which ranks wait in
// which call, and which ranks never made that call.
class GroupHistory {
 public:
  // `now` is the time at which the last record was written, in seconds since 1970.
  GroupHistory(const std::vector<FlightFile>& files, double now) : files_(files), now_(now) {}

  // Adds a rank that has a record of the group.
  void add_rank(const FlightFile& file, const FlightGroup& group);
  // Adds a call of the rank that was added last.
  void add(const FlightCall& call);

  // Returns the lines of the report; empty if there is no open call, no difference and no failure.
  [[nodiscard]] std::vector<std::string> tell() const;

 private:
  // Calls of one rank that are numbered together, by their number.
  using Line = std::map<std::uint64_t, const FlightCall*>;
  struct Part {
    const FlightFile* file = nullptr;
    const FlightGroup* group = nullptr;
    int number = 0;  // rank in the group
    Line collectives = {};
    std::map<int, Line> sends = {}, receives = {};  // by the peer's rank
  };
  // A call in which some ranks wait, and the ranks that have not made it.
  struct Open {
    std::uint64_t sequence = 0;
    std::vector<int> waiting, missing;  // ranks of the world
    const FlightCall* call = nullptr;
    double since = 0;
  };

  [[nodiscard]] std::optional<std::string> difference() const;
  [[nodiscard]] std::string shift(const Part& odd, const Part& other, std::uint64_t at) const;
  [[nodiscard]] std::optional<Open> open() const;
  [[nodiscard]] std::string told(const Open& open) const;
  [[nodiscard]] std::optional<std::string> last_common() const;
  void tell_messages(std::vector<std::string>& lines) const;
  void tell_failures(std::vector<std::string>& lines) const;
  // Returns "its last call was ..., 12.3s before", for the rank's last call in any group.
  [[nodiscard]] std::string last_of(int rank) const;
  [[nodiscard]] std::string ago(double time) const;
  [[nodiscard]] const std::string& name() const { return names_.name(); }

  const std::vector<FlightFile>& files_;
  double now_;
  std::vector<int> members_;
  GroupNames names_;
  std::vector<Part> parts_;
};

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

void GroupHistory::add_rank(const FlightFile& file, const FlightGroup& group) {
  members_ = group.members;
  names_ = {group.name, members_};
  const auto place = std::find(members_.begin(), members_.end(), file.rank);
  parts_.push_back(
      {.file = &file, .group = &group, .number = static_cast<int>(place - members_.begin())});
}

void GroupHistory::add(const FlightCall& call) {
  if (call.progress == "refused") return;
  Part& part = parts_.back();
  Line& line = call.call == "send"   ? part.sends[call.root]
               : call.call == "recv" ? part.receives[call.root]
                                     : part.collectives;
  line[call.sequence] = &call;
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

std::string time_text(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm local{};
  localtime_r(&whole, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local)};
}

void check_one_run(const std::vector<FlightFile>& files) {
  for (std::size_t index = 1; index < files.size(); ++index) {
    const FlightFile& file = files[index];
    const FlightFile& before = files[index - 1];
    check_input(file.size == before.size,
                "the records are of different runs: {} is of a run with {}, {} of one with {}",
                before.path, counted(before.size, "rank"), file.path, file.size);
    check_input(file.rank != before.rank, "two records are of rank {}: {} and {}", file.rank,
                before.path, file.path);
  }
}

void introduce(const std::vector<FlightFile>& files, double now, std::vector<std::string>& lines) {
  std::vector<int> present, absent;
  for (const FlightFile& file : files) present.push_back(file.rank);
  for (int rank = 0; rank < files.front().size; ++rank)
    if (!std::binary_search(present.begin(), present.end(), rank)) absent.push_back(rank);
  lines.push_back(formatted("records of {} of {} on {}; the last was written at {}",
                            rank_list(present), counted(files.front().size, "rank"),
                            files.front().backend, time_text(now)));
  if (!absent.empty())
    lines.push_back(
        formatted("no record of {}: killed, stopped, still computing, or its file was not named on "
                  "the command line",
                  rank_list(absent)));
  for (const FlightFile& file : files) {
    constexpr double long_before = 60;
    if (now - file.written > long_before)
      lines.push_back(formatted(
          "{} is older than the last by {}", file.path,
          format_duration(std::chrono::seconds(static_cast<std::int64_t>(now - file.written)))));
  }
}

// Returns the groups in order of creation. If a rank has two groups of one name, its first one
// counts.
std::vector<GroupHistory> histories_of(const std::vector<FlightFile>& files, double now) {
  std::vector<GroupHistory> histories;
  std::unordered_map<std::string, std::size_t> place_of;
  for (const FlightFile& file : files) {
    std::set<std::string_view> names;
    std::vector<std::optional<std::size_t>> place_of_group;
    for (const FlightGroup& group : file.groups) {
      place_of_group.emplace_back();
      if (!names.insert(group.name).second) continue;
      const auto [place, is_new] = place_of.try_emplace(group.name, histories.size());
      if (is_new) histories.emplace_back(files, now);
      histories[place->second].add_rank(file, group);
      place_of_group.back() = place->second;
    }
    for (const FlightCall& call : file.calls)
      if (const auto place = place_of_group[call.group]) histories[*place].add(call);
  }
  return histories;
}

// A collective of a group, in the record of a rank.
struct Launch {
  const FlightCall* call = nullptr;
  const FlightGroup* group = nullptr;
};

// Returns the collectives of a record in the order of their posts.
std::vector<Launch> launches_of(const FlightFile& file) {
  std::vector<Launch> launches;
  for (const FlightCall& call : file.calls)
    if (!call.is_message() && call.progress != "refused")
      launches.push_back({&call, &file.groups[call.group]});
  std::ranges::sort(launches, {}, [](const Launch& one) { return one.call->number; });
  return launches;
}

// Returns a sentence if two ranks have posted collectives of two groups in opposite orders. On
// streams of a device, these can wait for each other forever.
std::optional<std::string> opposite_orders(const FlightFile& one, const FlightFile& other) {
  std::map<std::pair<std::string_view, std::uint64_t>, Launch> theirs;
  for (const Launch& launch : launches_of(other))
    theirs.emplace(std::pair(std::string_view(launch.group->name), launch.call->sequence), launch);
  Launch before;
  std::uint64_t number_before = 0;
  for (const Launch& launch : launches_of(one)) {
    const auto found = theirs.find({launch.group->name, launch.call->sequence});
    if (found == theirs.end() || found->second.group->members != launch.group->members) continue;
    const std::uint64_t number = found->second.call->number;
    if (number < number_before)
      return formatted(
          "rank {} posted {} of group {} before {} of group {}, and rank {} after it: on a device "
          "they can wait for each other forever, so all ranks must post the calls of all groups in "
          "one order",
          one.rank, describe(*before.call, {before.group->name, before.group->members}),
          before.group->name, describe(*launch.call, {launch.group->name, launch.group->members}),
          launch.group->name, other.rank);
    before = launch;
    number_before = number;
  }
  return std::nullopt;
}

// Takes at least one file; each must be of another rank of the same run, otherwise throws BadInput.
// Returns lines without line ends.
std::vector<std::string> explain_hang(const std::vector<FlightFile>& unsorted) {
  std::vector<FlightFile> files = unsorted;
  std::sort(files.begin(), files.end(),
            [](const FlightFile& a, const FlightFile& b) { return a.rank < b.rank; });
  check_one_run(files);
  double now = 0;
  for (const FlightFile& file : files) now = std::max(now, file.written);
  std::vector<std::string> lines;
  introduce(files, now, lines);
  const std::size_t introduction = lines.size();
  for (const GroupHistory& history : histories_of(files, now)) {
    const auto story = history.tell();
    lines.insert(lines.end(), story.begin(), story.end());
  }
  for (std::size_t i = 1; i < files.size() && files.front().streams; ++i)
    if (auto text = opposite_orders(files.front(), files[i])) lines.push_back(*text);
  if (lines.size() == introduction)
    lines.emplace_back(
        "nothing is open: every recorded call was completed, and the ranks made the same calls");
  return lines;
}

constexpr const char* about =
    "Reads flight records (flight-rank-N.json), one of each rank, and says which rank waits in\n"
    "which call for how long, which rank never made it, where the ranks' calls first differ, and\n"
    "what all of them completed last. Ranks write them when a group fails, into the folder that\n"
    "LOCKSTEP_FLIGHT names; `lockstep run` names one and prints it.\n"
    "\n"
    "Exit code 0; 1 when a file could not be read (the others are explained); 2 for a mistake in\n"
    "the command.\n";

int report_hang(const std::vector<std::string>& paths) {
  int code = 0;
  std::vector<FlightFile> files;
  for (const std::string& path : paths) {
    try {
      files.push_back(read_flight_file(path));
    } catch (const BadInput& error) {
      print_to(stderr, "lockstep report hang: {}\n", error.what());
      code = 1;
    }
  }
  if (files.empty()) return 1;
  try {
    for (const std::string& line : explain_hang(files)) print_to(stdout, "{}\n", line);
  } catch (const BadInput& error) {
    print_to(stderr, "lockstep report hang: {}\n", error.what());
    return 1;
  }
  return code;
}

int report(const std::vector<std::string>& given) {
  CommandOptions options("lockstep report", "hang FILE...", about, CommandOptions::Words::allowed);
  if (const auto code = sys::answer(options.read(given), options)) return *code;
  const std::vector<std::string>& words = options.words();
  if (words.empty()) throw UsageError("name a report: hang");
  const std::vector<std::string_view> known{"hang"};
  if (words.front() != known.front())
    throw UsageError(unknown_name("report", words.front(), known));
  if (words.size() == 1)
    throw UsageError(
        "hang: no file was named: give the flight records, such as flight-rank-*.json");
  return report_hang({words.begin() + 1, words.end()});
}

}  // namespace

int main(int count, char** arguments) {
  return sys::run_program("lockstep report", [&] {
    return report({arguments + 1, arguments + count});
  });
}
