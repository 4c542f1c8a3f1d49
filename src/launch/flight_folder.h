// Where the ranks of a run put their flight records, and what they have put there.
#pragma once

#include "launch/environment.h"

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::launch {

class FlightFolder {
 public:
  // What the environment says, else the log folder, else a fresh name in the folder for temporary
  // files. Nothing is made: the first rank that writes makes it.
  FlightFolder(const Environment& environment, const std::string& log_folder,
               const std::string& run_id);

  [[nodiscard]] const std::string& path() const { return path_; }
  // How a shell names the records of this run, for `lockstep report hang`; empty when there is
  // none.
  [[nodiscard]] std::string records(int ranks) const;
  // Removes the records, where nobody has named a folder for them.
  void discard(int ranks) const;

 private:
  std::string path_;
  bool temporary_ = false;
  std::filesystem::file_time_type begin_;
};

}  // namespace lockstep::launch
