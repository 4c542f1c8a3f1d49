// Explains why the ranks of some flight records made no progress.
#pragma once

#include "apps/report/flight_file.h"

#include <string>
#include <vector>

namespace lockstep::apps {

// Takes at least one file; each must be of another rank of the same run, otherwise throws BadInput.
// Returns lines without line ends.
[[nodiscard]] std::vector<std::string> explain_hang(const std::vector<FlightFile>& files);

}  // namespace lockstep::apps
