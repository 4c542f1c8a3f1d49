// Reads environment variables with their type. The functions return std::nullopt if a variable is
// unset or empty. The functions throw BadInput if a value is invalid: "RANK: expected a whole
// number from 0 to 7, found 'two'".
#pragma once

#include <lockstep/base/deadline.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::environment {

[[nodiscard]] std::optional<std::string> text(const std::string& name);
// Reads a number from `least` to `most`, inclusive.
[[nodiscard]] std::optional<std::int64_t> integer(
    const std::string& name, std::int64_t least = std::numeric_limits<std::int64_t>::min(),
    std::int64_t most = std::numeric_limits<std::int64_t>::max());
// Reads 1, true, yes or on as true; 0, false, no or off as false.
[[nodiscard]] std::optional<bool> flag(const std::string& name);
// Reads a size such as 4096, 12MiB or 4GiB.
[[nodiscard]] std::optional<std::int64_t> bytes(const std::string& name);
// Reads a time such as 1m30s, 250ms or 90 (seconds).
[[nodiscard]] std::optional<Duration> duration(const std::string& name);
// Reads one of `words`. Throws BadInput for any other word; the message suggests the nearest.
[[nodiscard]] std::optional<std::string> one_of(const std::string& name,
                                                std::span<const std::string_view> words);

// Like text() and integer(), but throw BadInput if the variable is not set. `why` ends the
// sentence: "RANK is not set, but WORLD_SIZE is".
[[nodiscard]] std::string required_text(const std::string& name, std::string_view why = {});
[[nodiscard]] std::int64_t required_integer(const std::string& name, std::int64_t least,
                                            std::int64_t most, std::string_view why = {});

}  // namespace lockstep::environment
