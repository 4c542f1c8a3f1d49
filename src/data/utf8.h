// UTF-8 functions for text datasets, in addition to base/escaped.h: they encode characters,
// describe them in messages, and convert text that arrives byte by byte.
#pragma once

#include "base/escaped.h"
#include "base/format.h"

#include <lockstep/base/error.h>

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

// Calls take(character, offset) for each character of `text`. Throws BadInput, which begins with
// "reading SOURCE", if the text is not UTF-8.
template <class Take>
void for_each_character(std::string_view text, std::string_view source, Take take) {
  for (std::size_t offset = 0; offset < text.size();) {
    const auto character = first_character(text.substr(offset));
    if (!character)
      throw BadInput(formatted("reading {}: expected UTF-8 text, found an invalid byte at {}",
                               source, position(text, offset)));
    take(character->code_point, offset);
    offset += character->bytes;
  }
}

// Converts text that arrives byte by byte to whole characters. The output is always valid UTF-8:
// invalid bytes become U+FFFD, one per longest prefix of a character, as with Python's
// errors="replace".
class Utf8Stream {
 public:
  // Returns the characters that are complete; an incomplete one is kept for the next call.
  [[nodiscard]] std::string take(std::string_view bytes);
  // Returns U+FFFD if the last character is incomplete, otherwise an empty string.
  [[nodiscard]] std::string finish();

 private:
  std::string held_;
};

}  // namespace lockstep::data
