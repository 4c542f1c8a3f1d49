// Reads a line of words separated by single blanks, as a peer has written it.
#pragma once

#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace lockstep {

class WordReader {
 public:
  explicit WordReader(std::string_view line) : rest_(line) {}

  std::string_view next() {
    auto word = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(std::min(rest_.size(), word.size() + 1));
    return word;
  }
  // Returns a number in the given range. Otherwise returns `least` and marks the line as invalid.
  std::int64_t number(std::int64_t least, std::int64_t most) {
    auto value = parse_integer(next());
    good_ = good_ && value && *value >= least && *value <= most;
    return good_ ? *value : least;
  }
  std::uint64_t natural(int base = 10) {
    auto word = next();
    std::uint64_t value = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
    good_ = good_ && error == std::errc() && end == word.data() + word.size();
    return value;
  }

  // Returns the text that has not been read.
  [[nodiscard]] std::string_view rest() const { return rest_; }
  // Returns true if every word had the form it was read as.
  [[nodiscard]] bool is_good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace lockstep
