#include "base/escaped.h"

#include "base/format.h"

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

struct Range {
  char32_t first, last;
};

// Control characters (C0, DEL, C1), and Unicode characters that are invisible, end a line or change
// the direction of the text after them.
constexpr std::array<Range, 16> unseen{{{0x00, 0x1f},
                                        {0x7f, 0x9f},
                                        {0xad, 0xad},
                                        {0x61c, 0x61c},
                                        {0x115f, 0x1160},
                                        {0x180b, 0x180f},
                                        {0x200b, 0x200f},
                                        {0x2028, 0x202e},
                                        {0x2060, 0x206f},
                                        {0x3164, 0x3164},
                                        {0xd800, 0xf8ff},
                                        {0xfe00, 0xfe0f},
                                        {0xfeff, 0xfeff},
                                        {0xfff0, 0xfffb},
                                        {0xfffe, 0xffff},
                                        {0xe0000, 0x10ffff}}};

std::string escape_of(char32_t code_point) {
  if (code_point == '\n') return "\\n";
  if (code_point == '\r') return "\\r";
  if (code_point == '\t') return "\\t";
  const auto number = static_cast<unsigned>(code_point);
  return number < 0x80 ? formatted("\\x{:02x}", number) : formatted("\\u{{{:x}}}", number);
}

struct Piece {
  std::size_t bytes;   // in the text
  std::size_t width;   // characters printed
  std::string escape;  // empty if printed unchanged
};

Piece first_piece(std::string_view text) {
  const std::optional<Character> character = first_character(text);
  if (!character) {
    const auto byte = static_cast<unsigned>(static_cast<unsigned char>(text.front()));
    return {1, 4, formatted("\\x{:02x}", byte)};
  }
  const bool is_unseen = std::ranges::any_of(unseen, [&](Range range) {
    return character->code_point >= range.first && character->code_point <= range.last;
  });
  if (!is_unseen) return {character->bytes, 1, {}};
  std::string escape = escape_of(character->code_point);
  return {character->bytes, escape.size(), escape};
}

}  // namespace

std::optional<Character> first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return Character{lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return std::nullopt;
  char32_t code_point = lead & (0x7f >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!continues_character(text[i])) return std::nullopt;
    code_point = code_point << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  constexpr std::array<char32_t, 5> smallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < smallest[bytes] || code_point > 0x10ffff || surrogate) return std::nullopt;
  return Character{code_point, bytes};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::optional<Character> character = first_character(text);
    if (!character) return false;
    text.remove_prefix(character->bytes);
  }
  return true;
}

std::string escaped(std::string_view text, std::size_t max_length) {
  std::string shown;
  std::size_t width = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const Piece piece = first_piece(rest);
    if (width + piece.width > max_length) return shown + formatted("... ({} bytes)", text.size());
    shown += piece.escape.empty() ? rest.substr(0, piece.bytes) : std::string_view(piece.escape);
    width += piece.width;
    rest.remove_prefix(piece.bytes);
  }
  return shown;
}

std::string escaped_line(std::string_view line, std::size_t max_bytes) {
  constexpr std::string_view cut = "...";
  std::string shown;
  std::size_t kept = 0;  // length of the prefix of `shown` that remains if the line is cut
  for (std::string_view rest = line; !rest.empty();) {
    const Piece piece = first_piece(rest);
    const bool as_it_is = piece.escape.empty() || rest.front() == '\t';
    shown += as_it_is ? rest.substr(0, piece.bytes) : std::string_view(piece.escape);
    if (shown.size() > max_bytes) return shown.substr(0, kept) + std::string(cut);
    if (shown.size() + cut.size() <= max_bytes) kept = shown.size();
    rest.remove_prefix(piece.bytes);
  }
  return shown;
}

std::string shortened(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view cut = "...";
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t kept = max_bytes - cut.size();
  while (kept > 0 && continues_character(text[kept])) --kept;
  return std::string(text.substr(0, kept)).append(cut);
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string_view::npos)
    return std::string(word);
  std::string quoted = "'";
  for (char letter : word) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

}  // namespace lockstep
