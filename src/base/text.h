// Numbers as people write them, both ways. Parsers take the whole text or nothing: no rest, no
// overflow, no empty text; the caller knows what was being read and makes the error.
#pragma once

#include <lockstep/base/deadline.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// "-12", decimal.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text);
// "0.5", "1e-3"; finite.
[[nodiscard]] std::optional<double> parse_number(std::string_view text);
// "1", "true", "yes", "on" and "0", "false", "no", "off".
[[nodiscard]] std::optional<bool> parse_flag(std::string_view text);

// "4096", "12 MB" (10^6), "4GiB" (2^30), "1.5 kB"; units B, kB, MB, GB, TB, KiB, MiB, GiB, TiB in
// any case.
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);
// "4 GiB" where that is exact, else three digits and a decimal unit: "12.6 MB", "999 B".
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

// "1m30s", "250ms", "2h", "1.5s", "90" (seconds); units h, m, s, ms, us, ns.
[[nodiscard]] std::optional<Duration> parse_duration(std::string_view text);
// "2h5m", "1m30s", "12.3s", "250ms", "4us", "0s": two units or three digits.
[[nodiscard]] std::string format_duration(Duration duration);

// "a, b, c".
[[nodiscard]] std::string join(std::span<const std::string> parts,
                               std::string_view separator = ", ");
// "rank 3", "ranks 0-2, 5"; sorted numbers.
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

// What was probably meant: for names that people type (options, keys, parameters).

// Least number of inserted, removed, replaced or swapped neighbouring letters that turns a into b
// (optimal string alignment distance).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

// The known name closest to `name` (the first of equals), unless all differ in more than a third of
// their letters.
[[nodiscard]] std::optional<std::string_view> nearest(std::string_view name,
                                                      std::span<const std::string_view> known);

// "unknown key 'laers'; did you mean 'layers'?", or with nothing near: "unknown key 'x'; known:
// batch, layers".
[[nodiscard]] std::string unknown_name(std::string_view kind, std::string_view name,
                                       std::span<const std::string_view> known);

}  // namespace lockstep
