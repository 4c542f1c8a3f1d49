#include "launch/flight_folder.h"

#include "base/text.h"

#include <algorithm>
#include <chrono>

namespace lockstep::launch {

namespace fs = std::filesystem;

// The kernel stamps files with the time of its last tick.
constexpr std::chrono::milliseconds coarseness{50};

FlightFolder::FlightFolder(const Environment& environment, const std::string& log_folder,
                           const std::string& run_id)
    : begin_(fs::file_time_type::clock::now() - coarseness) {
  const auto given = std::find_if(environment.begin(), environment.end(), [](const auto& entry) {
    return entry.first == variable::flight_folder && !entry.second.empty();
  });
  std::error_code ignored;
  if (given != environment.end()) {
    path_ = given->second;
  } else if (!log_folder.empty()) {
    path_ = fs::absolute(log_folder, ignored).string();
  } else {
    path_ = (fs::temp_directory_path(ignored) / (run_id + "-flight")).string();
    temporary_ = true;
  }
}

std::string FlightFolder::records(int ranks) const {
  std::vector<std::string> fresh;
  bool older = false;
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path file = fs::path(path_) / ("flight-rank-" + std::to_string(rank) + ".json");
    std::error_code absent;
    const auto written = fs::last_write_time(file, absent);
    if (absent) continue;
    if (written < begin_) {
      older = true;
    } else {
      fresh.push_back(file.string());
    }
  }
  if (fresh.size() > 1 && !older) return (fs::path(path_) / "flight-rank-*.json").string();
  return join(fresh, " ");
}

void FlightFolder::discard(int ranks) const {
  if (!temporary_) return;
  std::error_code ignored;
  // A rank that was killed while it wrote its record has left a file without its final name.
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".flight-rank-") && name.ends_with(".partial"))
      fs::remove(entry.path(), ignored);
  }
  for (int rank = 0; rank < ranks; ++rank)
    fs::remove(fs::path(path_) / ("flight-rank-" + std::to_string(rank) + ".json"), ignored);
  fs::remove(path_, ignored);  // not when there is anything else in it
}

}  // namespace lockstep::launch
