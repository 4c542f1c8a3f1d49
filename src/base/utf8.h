// UTF-8, one character at a time (RFC 3629): no overlong forms, no surrogates, nothing above
// U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep {

struct Character {
  char32_t code_point;
  std::size_t bytes;
};

// The character at the beginning of `text` (not empty); nothing when the bytes there are none.
[[nodiscard]] std::optional<Character> first_character(std::string_view text);

[[nodiscard]] bool is_utf8(std::string_view text);

}  // namespace lockstep
