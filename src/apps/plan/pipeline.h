// lockstep plan pipeline: draws a schedule as text and as SVG, and computes its bubble and its
// memory.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// `words` are the arguments after "plan pipeline". Returns the exit code of the process.
[[nodiscard]] int plan_pipeline(const std::vector<std::string>& words);

}  // namespace lockstep::apps
