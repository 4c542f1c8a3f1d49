#include <lockstep/base/format.h>
#include <lockstep/base/visible.h>

#include <array>
#include <cstdint>

namespace lockstep {
namespace {

struct Letter {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: what stands there is no UTF-8
};

// The letter at the front of a text that is not empty.
Letter first_letter(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  char32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    code = code << 6 | (next & 0x3f);
  }
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  if (code < least.at(bytes) || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, bytes};
}

bool is_control(char32_t code) {
  return (code < 0x20 && code != '\t') || (code >= 0x7f && code <= 0x9f);
}

// Ends of lines and paragraphs, marks of direction, embeddings, overrides and isolates.
bool is_layout(char32_t code) {
  return (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string visible(std::string_view text, std::size_t most_bytes) {
  std::string shown;
  std::size_t used = 0;
  while (used < text.size()) {
    const Letter letter = first_letter(text.substr(used));
    const std::size_t bytes = letter.bytes == 0 ? 1 : letter.bytes;
    if (used + bytes > most_bytes) return shown + "...";
    if (letter.bytes == 0 || (is_control(letter.code) && letter.bytes == 1)) {
      const char byte = text[used];
      shown += byte == '\n'   ? "\\n"
               : byte == '\r' ? "\\r"
                              : formatted("\\x{:02x}", static_cast<unsigned char>(byte));
    } else if (is_control(letter.code) || is_layout(letter.code)) {
      shown += formatted("\\u{:04x}", static_cast<std::uint32_t>(letter.code));
    } else {
      shown += text.substr(used, bytes);
    }
    used += bytes;
  }
  return shown;
}

}  // namespace lockstep
