// Environment variables, read with their type. A variable that is unset or empty is nothing; one
// that does not read as what it should be is BadInput: "RANK: expected a whole number from 0 to 7,
// found 'two'".
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
// From `least` to `most`, both allowed.
[[nodiscard]] std::optional<std::int64_t> integer(
    const std::string& name, std::int64_t least = std::numeric_limits<std::int64_t>::min(),
    std::int64_t most = std::numeric_limits<std::int64_t>::max());
// 1, true, yes, on; 0, false, no, off.
[[nodiscard]] std::optional<bool> flag(const std::string& name);
// 4096, 12MB, 4GiB.
[[nodiscard]] std::optional<std::int64_t> bytes(const std::string& name);
// 1m30s, 250ms, 90 (seconds).
[[nodiscard]] std::optional<Duration> duration(const std::string& name);
// One of these words; another is BadInput that suggests the nearest.
[[nodiscard]] std::optional<std::string> one_of(const std::string& name,
                                                std::span<const std::string_view> words);

// The same where the variable must be set: BadInput says that it is missing. `why` ends the
// sentence: "RANK is not set, but WORLD_SIZE is".
[[nodiscard]] std::string required_text(const std::string& name, std::string_view why = {});
[[nodiscard]] std::int64_t required_integer(const std::string& name, std::int64_t least,
                                            std::int64_t most, std::string_view why = {});

}  // namespace lockstep::environment
