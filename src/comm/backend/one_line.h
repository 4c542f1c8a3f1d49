// LibTorch's errors end with a backtrace; ours are one line.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

[[nodiscard]] inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace lockstep
