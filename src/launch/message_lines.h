// Texts that agents exchange, read line by line. Every reader takes bytes from a peer, bounds what
// it makes of them, and throws BadInput for anything that is not exactly one such text.
#pragma once

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "base/visible.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launch {

inline constexpr std::size_t most_text_bytes = 4 << 20;
inline constexpr std::size_t most_line_bytes = 4096;

// What the writers are given, fit for one line.
inline std::string tidy(std::string_view text) { return visible_line(text, most_line_bytes - 64); }

// Takes one line after the other off the front.
class MessageLines {
 public:
  MessageLines(const char* what, std::string_view text) : what_(what), left_(text) {
    check_input(text.size() <= most_text_bytes,
                "{} of another agent: expected at most {} bytes, found {}", what, most_text_bytes,
                text.size());
  }

  [[nodiscard]] bool at_end() const { return left_.empty(); }

  std::string_view take() {
    const std::size_t end = left_.find('\n');
    const std::string_view line = left_.substr(0, end);
    if (end == std::string_view::npos || line.size() > most_line_bytes ||
        visible_line(line) != line)
      fail("a line of text", line);
    left_.remove_prefix(end + 1);
    return line;
  }

  // The rest of a line that begins with that word and a blank.
  std::string_view take(std::string_view word) {
    const std::string_view line = take();
    if (!line.starts_with(word) || line.substr(word.size(), 1) != " ") fail(word, line);
    return line.substr(word.size() + 1);
  }

  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    throw BadInput(formatted("{} of another agent: expected {}, found '{}'", what_, expected,
                             visible(found, 60)));
  }

 private:
  const char* what_;
  std::string_view left_;
};

struct Range {
  std::int64_t least, most;
};

// Numbers with one blank between them, and then what is left of the line.
template <std::size_t count>
std::array<std::int64_t, count> take_numbers(const MessageLines& lines, std::string_view& rest,
                                             const std::array<Range, count>& ranges) {
  std::array<std::int64_t, count> numbers{};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = rest.find(' ');
    const auto number = parse_integer(rest.substr(0, end));
    if (!number || *number < ranges[i].least || *number > ranges[i].most)
      lines.fail(formatted("a number from {} to {}", ranges[i].least, ranges[i].most), rest);
    numbers[i] = *number;
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return numbers;
}

template <std::size_t count>
std::array<std::int64_t, count> only_numbers(const MessageLines& lines, std::string_view text,
                                             const std::array<Range, count>& ranges) {
  const auto numbers = take_numbers(lines, text, ranges);
  if (!text.empty()) lines.fail("the end of a line", text);
  return numbers;
}

}  // namespace lockstep::launch
