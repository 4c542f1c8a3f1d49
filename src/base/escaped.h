// Makes untrusted text (from a file, a peer or a rank) safe to print in a message.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// A character of UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
struct Character {
  char32_t code_point;
  std::size_t bytes;
};

// Returns the first character of `text` (not empty), or std::nullopt if its first bytes are not
// UTF-8.
[[nodiscard]] std::optional<Character> first_character(std::string_view text);

[[nodiscard]] bool is_utf8(std::string_view text);

// Returns `text` on one line, safe for terminals and logs. Invisible and control characters are
// written as escapes (\n, \t, \x1b, \u{202e}), and so is each byte that is not UTF-8 (\xff). If the
// text has more than `max_length` characters, returns the first ones and the total size: "abc...
// (10485760 bytes)". max_length counts printed characters, escapes included.
[[nodiscard]] std::string escaped(std::string_view text, std::size_t max_length = 120);

// Like escaped(), for a line that is printed on its own: keeps tabs. A line that needs more than
// `max_bytes` is truncated: "abc...", max_bytes in total. The function is idempotent.
[[nodiscard]] std::string escaped_line(std::string_view line,
                                       std::size_t max_bytes = std::string_view::npos);

// Returns `text` if it fits into `max_bytes` (at least 3). Otherwise returns its beginning, cut at
// the end of a character, and "...".
[[nodiscard]] std::string shortened(std::string_view text, std::size_t max_bytes);

// Quotes one word for a shell if necessary.
[[nodiscard]] std::string shell_word(std::string_view word);

}  // namespace lockstep
