#include "apps/report/hang.h"

#include "apps/report/group_history.h"
#include "base/check.h"
#include "base/counted.h"
#include "base/text.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::apps {

namespace {

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
                            files.front().engine, time_text(now)));
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

using NamedParts = std::pair<std::string, std::vector<FlightPart>>;

// Returns the groups in order of creation, with each rank's part. If a rank has two groups of one
// name, its first one counts.
std::vector<NamedParts> groups_of(const std::vector<FlightFile>& files) {
  std::vector<NamedParts> groups;
  std::unordered_map<std::string, std::size_t> place_of;
  for (std::size_t file = 0; file < files.size(); ++file) {
    std::vector<FlightPart*> part_of(files[file].groups.size(), nullptr);
    for (std::size_t group = 0; group < files[file].groups.size(); ++group) {
      const std::string& name = files[file].groups[group].name;
      const auto [place, is_new] = place_of.try_emplace(name, groups.size());
      if (is_new) groups.emplace_back(name, std::vector<FlightPart>());
      std::vector<FlightPart>& parts = groups[place->second].second;
      if (parts.empty() || parts.back().file != file) parts.push_back({file, group, {}});
    }
    for (std::size_t group = 0; group < part_of.size(); ++group) {
      FlightPart& part = groups[place_of.at(files[file].groups[group].name)].second.back();
      if (part.group == group) part_of[group] = &part;
    }
    for (std::size_t call = 0; call < files[file].calls.size(); ++call)
      if (FlightPart* part = part_of[files[file].calls[call].group]) part->calls.push_back(call);
  }
  return groups;
}

}  // namespace

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
  for (const auto& [name, parts] : groups_of(files)) {
    const auto story = GroupHistory(files, parts, name, now).tell();
    lines.insert(lines.end(), story.begin(), story.end());
  }
  if (lines.size() == introduction)
    lines.emplace_back(
        "nothing is open: every recorded call was completed, and the ranks made the same calls");
  return lines;
}

}  // namespace lockstep::apps
