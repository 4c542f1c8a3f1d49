// Conversion between numbers and text for users. Parsers return std::nullopt unless the whole text
// is valid: they reject trailing characters, overflow and empty text. The caller creates the error
// message, because it knows what was read.
#pragma once

#include <lockstep/base/deadline.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Parses a decimal integer such as "-12".
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text);
// Parses a finite number such as "0.5" or "1e-3".
[[nodiscard]] std::optional<double> parse_number(std::string_view text);
// Parses "1", "true", "yes", "on" and "0", "false", "no", "off".
[[nodiscard]] std::optional<bool> parse_flag(std::string_view text);

// Parses a size such as "4096", "4GiB" (2^30), "1.5 KiB" or "12 MB" (10^6). The units are B, KiB,
// MiB, GiB, TiB, kB, MB, GB and TB, in any case.
[[nodiscard]] std::optional<std::int64_t> parse_bytes(std::string_view text);
// Returns "4 GiB" if a unit is exact, otherwise a rounded number: "12.6 MiB", "999 B". Units are
// binary.
[[nodiscard]] std::string format_bytes(std::int64_t bytes);

// Parses a time such as "1m30s", "250ms", "2h", "1.5s" or "90" (seconds). The units are h, m, s,
// ms, us and ns.
[[nodiscard]] std::optional<Duration> parse_duration(std::string_view text);
// Returns a time with two units or three digits: "2h5m", "1m30s", "12.3s", "250ms", "4us", "0s".
[[nodiscard]] std::string format_duration(Duration duration);

// Returns the first line: LibTorch's errors end with a backtrace.
[[nodiscard]] inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}
// Calls take(part) for each part of a text: "a,,b" has "a", "" and "b"; "" has one empty part.
template <typename Take>
void for_each_part(std::string_view text, char separator, Take take) {
  for (;;) {
    const std::size_t end = text.find(separator);
    take(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}
// Returns the words between blanks and line ends.
[[nodiscard]] std::vector<std::string> words_of(const std::string& text);
// Returns "a, b, c".
[[nodiscard]] std::string join(std::span<const std::string> parts,
                               std::string_view separator = ", ");
// Returns "rank 3" or "ranks 0-2, 5". `ranks` must be sorted.
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

// Suggestions for misspelt names (options, keys, parameters).

// Returns the minimum number of insertions, deletions, replacements and swaps of neighbouring
// letters that turn a into b (optimal string alignment distance).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

// Returns the known name closest to `name` (the first of several equally close names), or
// std::nullopt if all names differ in more than a third of their letters.
[[nodiscard]] std::optional<std::string_view> nearest(std::string_view name,
                                                      std::span<const std::string_view> known);

// Returns "unknown key 'laers'; did you mean 'layers'?" or, without a close match, "unknown key
// 'x'; known: batch, layers".
[[nodiscard]] std::string unknown_name(std::string_view kind, std::string_view name,
                                       std::span<const std::string_view> known);

}  // namespace lockstep
