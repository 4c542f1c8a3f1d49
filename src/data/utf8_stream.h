// Utf8Stream: text that comes byte by byte, passed on in whole characters.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::data {

// What leaves is UTF-8 whatever enters: bytes that belong to no character become U+FFFD, one for
// each longest beginning of a character, as Python's errors="replace" does.
class Utf8Stream {
 public:
  // The characters that are whole now; the beginning of one more is kept for the next call.
  [[nodiscard]] std::string take(std::string_view bytes);
  // U+FFFD when a character was begun and never ended, else nothing.
  [[nodiscard]] std::string finish();

 private:
  std::string held_;
};

// All of a text at once.
[[nodiscard]] std::string valid_utf8(std::string_view bytes);

}  // namespace lockstep::data
