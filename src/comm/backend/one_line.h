// Reduces LibTorch's errors, which end with a backtrace, to one line.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

[[nodiscard]] inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace lockstep
