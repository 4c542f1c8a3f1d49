#include "apps/report/hang.h"

#include "apps/report/group_story.h"

#include <lockstep/base/check.h>
#include <lockstep/base/text.h>

#include <algorithm>
#include <ctime>

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
    check_input(file.size == before.size, "{} is of a run of {} ranks, {} of one of {}",
                before.path, before.size, file.path, file.size);
    check_input(file.rank != before.rank, "rank {} is there twice: {} and {}", file.rank,
                before.path, file.path);
  }
}

void introduce(const std::vector<FlightFile>& files, double now, std::vector<std::string>& lines) {
  std::vector<int> present, absent;
  for (const FlightFile& file : files) present.push_back(file.rank);
  for (int rank = 0; rank < files.front().size; ++rank)
    if (!std::binary_search(present.begin(), present.end(), rank)) absent.push_back(rank);
  lines.push_back(formatted("records of {} of {} ranks on {}; the last was written at {}",
                            rank_list(present), files.front().size, files.front().engine,
                            time_text(now)));
  if (!absent.empty())
    lines.push_back(formatted(
        "no record of {}: killed, stopped, still computing, or its file was not named here",
        rank_list(absent)));
  for (const FlightFile& file : files) {
    constexpr double long_before = 60;
    if (now - file.written > long_before)
      lines.push_back(formatted(
          "{} is older than the last by {}", file.path,
          format_duration(std::chrono::seconds(static_cast<std::int64_t>(now - file.written)))));
  }
}

}  // namespace

std::vector<std::string> explain_hang(const std::vector<FlightFile>& unsorted) {
  std::vector<FlightFile> files = unsorted;
  std::sort(files.begin(), files.end(),
            [](const FlightFile& a, const FlightFile& b) { return a.rank < b.rank; });
  check_one_run(files);
  double now = 0;
  std::vector<std::string> names;  // in the order in which the groups were made
  for (const FlightFile& file : files) {
    now = std::max(now, file.written);
    for (const FlightGroup& group : file.groups)
      if (std::find(names.begin(), names.end(), group.name) == names.end())
        names.push_back(group.name);
  }
  std::vector<std::string> lines;
  introduce(files, now, lines);
  const std::size_t introduction = lines.size();
  for (const std::string& name : names) {
    const auto story = GroupStory(files, name, now).tell();
    lines.insert(lines.end(), story.begin(), story.end());
  }
  if (lines.size() == introduction)
    lines.emplace_back("nothing is open: every recorded call was completed, and none differs");
  return lines;
}

}  // namespace lockstep::apps
