// Text from outside (a file, a peer, a rank) as part of a message.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// UTF-8, one character at a time (RFC 3629): no overlong forms, no surrogates, nothing above
// U+10FFFF.
struct Character {
  char32_t code_point;
  std::size_t bytes;
};

// The character at the beginning of `text` (not empty); nothing when the bytes there are none.
[[nodiscard]] std::optional<Character> first_character(std::string_view text);

[[nodiscard]] bool is_utf8(std::string_view text);

// `text` on one line, fit for a terminal and a log: what would not be seen, or be obeyed, is
// written as an escape (\n, \t, \x1b, \u{202e}), and so is each byte that is not UTF-8 (\xff). Of
// more than `max_length` characters the first are kept, and the size of all is told: "abc...
// (10485760 bytes)". max_length counts what is shown, escapes included.
[[nodiscard]] std::string visible(std::string_view text, std::size_t max_length = 120);

// A line that is shown by itself, the same way but for tabs, which stay. Of a line that would take
// more than `max_bytes` the beginning is kept: "abc...", in max_bytes altogether. What this
// function has returned it returns unchanged.
[[nodiscard]] std::string visible_line(std::string_view line,
                                       std::size_t max_bytes = std::string_view::npos);

// `text` where that fits into `max_bytes`, which are at least 3; else its beginning, up to the end
// of a character, and "...".
[[nodiscard]] std::string shortened(std::string_view text, std::size_t max_bytes);

}  // namespace lockstep
