// The version of this library, as find_package(lockstep) in CMake reports it.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep {

// Returns the version, such as "0.1.0".
[[nodiscard]] std::string_view version();

}  // namespace lockstep

#pragma GCC visibility pop
