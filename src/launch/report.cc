#include "launch/report.h"

#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <map>

namespace lockstep::launch {

std::string describe(const std::vector<RankEnd>& ends) {
  std::map<std::string, std::vector<int>> by_end;
  for (const RankEnd& end : ends) by_end[end.how].push_back(end.rank);
  std::vector<std::string> parts;
  for (auto& [how, ranks] : by_end) {
    std::sort(ranks.begin(), ranks.end());
    parts.push_back(rank_list(ranks) + ": " + how);
  }
  return join(parts, "; ");
}

namespace {

std::vector<int> sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Enough to tell it from others.
std::string beginning(const std::string& sentence) {
  constexpr std::size_t most = 60;
  return sentence.size() <= most ? sentence : sentence.substr(0, most) + "...";
}

// Whether the one failure that was shown is that rank's own.
bool is_all_of(const std::vector<SharedFailures::Failure>& failures, int rank) {
  return failures.size() == 1 && failures[0].ranks == std::vector<int>{rank};
}

// The error file, unless it says the same sentence as the rank has printed.
void add_recorded(const FailureReport& report, std::vector<std::string>& lines) {
  const auto is_recorded = [&](const SharedFailures::Failure& failure) {
    return report.recorded == std::vector<std::string>{failure.sentence};
  };
  if (report.recorded.empty()) return;
  if (report.shared && std::ranges::any_of(report.shared->failures(), is_recorded)) return;
  lines.push_back("what it has recorded:");
  for (const std::string& line : report.recorded) lines.push_back("  | " + line);
}

void add_last_lines(const FailureReport& report, std::vector<std::string>& lines) {
  if (report.last_lines.empty()) {
    lines.push_back("it had printed nothing");
    return;
  }
  std::vector<std::string> own;
  for (const std::string& line : report.last_lines)
    if (!report.shared || !report.shared->is_repeated(line)) own.push_back("  | " + line);
  if (own.empty()) return;
  lines.push_back("its last lines:");
  lines.insert(lines.end(), own.begin(), own.end());
}

}  // namespace

std::vector<std::string> describe(const FailureReport& report) {
  const RankEnd& cause = report.cause;
  std::vector<std::string> lines;
  const std::string verb =
      cause.exit_code > 128 && cause.how.starts_with("killed") ? "was " : "ended with ";
  const std::string where = report.where.empty() ? "" : report.where + ", ";
  const bool says_all = report.shared && is_all_of(report.shared->failures(), cause.rank);
  lines.push_back(formatted("rank {} of {} ({}pid {}) {}{} at {}, after {}{}", cause.rank,
                            report.ranks, where, cause.pid, verb, cause.how, report.at,
                            format_duration(cause.after), says_all ? ", as shown above" : ""));
  add_last_lines(report, lines);
  add_recorded(report, lines);
  if (!report.log_file.empty()) lines.push_back("its log: " + report.log_file);
  if (!report.error_file.empty()) lines.push_back("its error file: " + report.error_file);
  if (report.shared && !says_all) {
    const std::vector<SharedFailures::Failure>& failures = report.shared->failures();
    for (const SharedFailures::Failure& failure : failures)
      lines.push_back(rank_list(sorted(failure.ranks)) + " failed as shown above" +
                      (failures.size() > 1 ? ": " + beginning(failure.sentence) : ""));
  }
  if (report.witness) {
    lines.push_back(formatted("rank {} ended with {} and had said:", report.witness->end.rank,
                              report.witness->end.how));
    for (const std::string& line : report.witness->last_lines) lines.push_back("  | " + line);
  }
  if (!report.others.empty())
    lines.push_back(formatted("the {} ended {} it: {}",
                              report.where.empty() ? "others" : "ranks of this node",
                              report.ended_together ? "with" : "after", describe(report.others)));
  return lines;
}

}  // namespace lockstep::launch
