// lockstep plan pipeline: draws a schedule as text and as SVG, with its bubble and its memory.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// `words` follow "plan pipeline" on the command line. Returns the exit code of the process.
[[nodiscard]] int plan_pipeline(const std::vector<std::string>& words);

}  // namespace lockstep::apps
