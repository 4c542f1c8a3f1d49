// Sentences about why the ranks that wrote some flight records did not get on.
#pragma once

#include "apps/report/flight_file.h"

#include <string>
#include <vector>

namespace lockstep::apps {

// At least one file, each of another rank of one run (BadInput otherwise). Lines without their
// ends.
[[nodiscard]] std::vector<std::string> explain_hang(const std::vector<FlightFile>& files);

}  // namespace lockstep::apps
