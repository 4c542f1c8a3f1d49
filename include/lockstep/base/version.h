// The version of this library, as CMake's find_package(Lockstep) knows it.
#pragma once

#include <string_view>

namespace lockstep {

// "0.1.0".
[[nodiscard]] std::string_view version();

}  // namespace lockstep
