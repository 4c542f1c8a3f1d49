// Names of vector instruction sets, as in Highway, the widest first.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// Returns the instruction sets for which this build has kernels.
[[nodiscard]] std::vector<std::string> compiled_simd();
// Returns the instruction sets of this host's processor.
[[nodiscard]] std::vector<std::string> machine_simd();

}  // namespace lockstep::apps
