// The version of this library, as CMake's find_package(lockstep) knows it.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep {

// "0.1.0".
[[nodiscard]] std::string_view version();

}  // namespace lockstep

#pragma GCC visibility pop
