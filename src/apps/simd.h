// Names of vector instruction sets, as Highway calls them, the widest first.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

// Those that kernels of this build have code for.
[[nodiscard]] std::vector<std::string> compiled_simd();
// Those that this machine's processor has.
[[nodiscard]] std::vector<std::string> machine_simd();

}  // namespace lockstep::apps
