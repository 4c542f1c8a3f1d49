// UTF-8 functions for text datasets, in addition to base/visible.h: encodes characters and
// describes them in messages.
#pragma once

#include "base/visible.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::data {

[[nodiscard]] std::string to_utf8(char32_t code_point);

// Returns a description for messages: the character in quotes if printable, and its code point: 'e'
// (U+0065), U+000A.
[[nodiscard]] std::string described(char32_t code_point);

// Returns the position of the byte at `offset` for messages: "offset 123 (line 3, column 7)";
// columns count characters.
[[nodiscard]] std::string position(std::string_view text, std::size_t offset);

}  // namespace lockstep::data
