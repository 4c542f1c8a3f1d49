#include "data/utf8.h"

#include <algorithm>

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
  const std::string number = formatted("U+{:04X}", code_point);
  const bool prints =
      code_point > 0x20 && code_point != 0x7f && !(code_point >= 0x80 && code_point < 0xa0);
  return prints ? formatted("'{}' ({})", to_utf8(code_point), number) : number;
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

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// Returns true if `bytes` is a proper prefix of a character (RFC 3629, section 4).
bool begins_character(std::string_view bytes) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes.size() >= length) return false;
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    unsigned least = 0x80, most = 0xbf;
    if (i == 1 && lead == 0xe0) least = 0xa0;
    if (i == 1 && lead == 0xed) most = 0x9f;
    if (i == 1 && lead == 0xf0) least = 0x90;
    if (i == 1 && lead == 0xf4) most = 0x8f;
    if (byte(i) < least || byte(i) > most) return false;
  }
  return true;
}

// Returns how many bytes one U+FFFD replaces at the beginning of `bytes`, which do not form a
// character.
std::size_t wrong_bytes(std::string_view bytes) {
  std::size_t count = std::min<std::size_t>(3, bytes.size());
  while (count > 1 && !begins_character(bytes.substr(0, count))) --count;
  return count;
}

}  // namespace

std::string Utf8Stream::take(std::string_view bytes) {
  held_ += bytes;
  std::string text;
  std::string_view left = held_;
  while (!left.empty()) {
    if (const auto character = first_character(left)) {
      text += left.substr(0, character->bytes);
      left.remove_prefix(character->bytes);
    } else if (begins_character(left)) {
      break;
    } else {
      text += replacement;
      left.remove_prefix(wrong_bytes(left));
    }
  }
  held_ = std::string(left);
  return text;
}

std::string Utf8Stream::finish() {
  const bool was_cut = !held_.empty();
  held_.clear();
  return was_cut ? std::string(replacement) : std::string();
}

}  // namespace lockstep::data
