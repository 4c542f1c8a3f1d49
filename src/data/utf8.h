// UTF-8, one character at a time (RFC 3629): no overlong forms, no surrogates, nothing above
// U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data {

struct Character {
  char32_t code_point;
  std::size_t bytes;
};

// The character at the beginning of `text` (not empty); nothing when the bytes there are none.
[[nodiscard]] std::optional<Character> first_character(std::string_view text);

[[nodiscard]] std::string to_utf8(char32_t code_point);

// For messages: the character in quotes where it prints, and its code point: 'e' (U+0065), U+000A.
[[nodiscard]] std::string described(char32_t code_point);

// For messages: "offset 123 (line 3, column 7)" of the byte at `offset`; columns count characters.
[[nodiscard]] std::string position(std::string_view text, std::size_t offset);

}  // namespace lockstep::data
