#include "launch/report.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

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

std::vector<std::string> describe(const FailureReport& report) {
  const RankEnd& cause = report.cause;
  std::vector<std::string> lines;
  const std::string verb =
      cause.exit_code > 128 && cause.how.starts_with("killed") ? "was " : "ended with ";
  lines.push_back(formatted("rank {} of {} (pid {}) {}{} at {}, after {}", cause.rank, report.ranks,
                            cause.pid, verb, cause.how, report.at, format_duration(cause.after)));
  if (report.last_lines.empty()) {
    lines.push_back("it had printed nothing");
  } else {
    lines.push_back("its last lines:");
    for (const std::string& line : report.last_lines) lines.push_back("  | " + line);
  }
  if (!report.log_file.empty()) lines.push_back("its log: " + report.log_file);
  if (!report.others.empty())
    lines.push_back("the others ended after it: " + describe(report.others));
  return lines;
}

}  // namespace lockstep::launch
