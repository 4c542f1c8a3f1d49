// Utf8Stream: converts text that arrives byte by byte to whole characters.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::data {

// The output is always valid UTF-8: invalid bytes become U+FFFD, one per longest prefix of a
// character, as with Python's errors="replace".
class Utf8Stream {
 public:
  // Returns the characters that are complete; an incomplete one is kept for the next call.
  [[nodiscard]] std::string take(std::string_view bytes);
  // Returns U+FFFD if the last character is incomplete, otherwise an empty string.
  [[nodiscard]] std::string finish();

 private:
  std::string held_;
};

// Converts a whole text at once.
[[nodiscard]] std::string valid_utf8(std::string_view bytes);

}  // namespace lockstep::data
