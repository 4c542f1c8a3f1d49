#include "data/utf8.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace lockstep::data {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

std::string to_utf8(char32_t code_point) {
  auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  auto tail = [&](int shift) { return byte(0x80 | (code_point >> shift & 0x3f)); };
  if (code_point < 0x80) return {byte(code_point)};
  if (code_point < 0x800) return {byte(0xc0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {byte(0xe0 | code_point >> 12), tail(6), tail(0)};
  return {byte(0xf0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

std::string described(char32_t code_point) {
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), "U+%04X", static_cast<unsigned>(code_point));
  const bool prints =
      code_point > 0x20 && code_point != 0x7f && !(code_point >= 0x80 && code_point < 0xa0);
  return prints ? "'" + to_utf8(code_point) + "' (" + number.data() + ")" : number.data();
}

std::string position(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto column =
      std::ranges::count_if(before.substr(begin), [](char byte) { return !continues(byte); }) + 1;
  return "offset " + std::to_string(offset) + " (line " + std::to_string(line) + ", column " +
         std::to_string(column) + ")";
}

}  // namespace lockstep::data
