// UTF-8 as texts of data need it, beside base/visible.h: characters written, and named in
// messages.
#pragma once

#include "base/visible.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::data {

[[nodiscard]] std::string to_utf8(char32_t code_point);

// For messages: the character in quotes where it prints, and its code point: 'e' (U+0065), U+000A.
[[nodiscard]] std::string described(char32_t code_point);

// For messages: "offset 123 (line 3, column 7)" of the byte at `offset`; columns count characters.
[[nodiscard]] std::string position(std::string_view text, std::size_t offset);

}  // namespace lockstep::data
