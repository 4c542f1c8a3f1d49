// Numbers with their noun, for messages.
#pragma once

#include "base/format.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// "1 rank", "3 ranks"; of "micro-batch" and "es": "2 micro-batches".
[[nodiscard]] inline std::string counted(std::int64_t count, std::string_view noun,
                                         std::string_view plural_end = "s") {
  return formatted("{} {}{}", count, noun, count == 1 ? "" : plural_end);
}

}  // namespace lockstep
