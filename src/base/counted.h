// Formats numbers with their noun, for messages.
#pragma once

#include "base/format.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// Returns "1 rank" or "3 ranks"; with "batch" and "es", returns "2 batches".
[[nodiscard]] inline std::string counted(std::int64_t count, std::string_view noun,
                                         std::string_view plural_end = "s") {
  return formatted("{} {}{}", count, noun, count == 1 ? "" : plural_end);
}

}  // namespace lockstep
