#include "data/gpt2_words.h"

#include "base/check.h"
#include "base/visible.h"
#include "data/unicode_categories.h"
#include "data/utf8.h"

#include <algorithm>
#include <array>

namespace lockstep::data {
namespace {

enum class Kind { letter, number, space, other };

Kind kind_of(char32_t code_point) {
  if (is_letter(code_point)) return Kind::letter;
  if (is_number(code_point)) return Kind::number;
  return is_white_space(code_point) ? Kind::space : Kind::other;
}

// Characters one by one, with their kinds.
struct Reader {
  std::string_view text, whole, source;

  [[nodiscard]] Character at(std::size_t offset) const {
    auto character = first_character(text.substr(offset));
    if (!character)
      throw BadInput(formatted("reading {}: expected UTF-8 text, found another byte at {}", source,
                               position(whole, whole.size() - text.size() + offset)));
    return *character;
  }
  // Where the run of characters of this kind that begins at `offset` ends.
  [[nodiscard]] std::size_t end_of_run(std::size_t offset, Kind kind) const {
    while (offset < text.size()) {
      Character one = at(offset);
      if (kind_of(one.code_point) != kind) break;
      offset += one.bytes;
    }
    return offset;
  }
};

std::size_t contraction(std::string_view text) {
  static constexpr std::array<std::string_view, 7> endings{"'s", "'t",  "'re", "'ve",
                                                           "'m", "'ll", "'d"};
  for (std::string_view ending : endings)
    if (text.starts_with(ending)) return ending.size();
  return 0;
}

// "'r" of "'re", which is a piece by itself nowhere.
bool is_begin_of_contraction(std::string_view text) {
  return text == "'r" || text == "'v" || text == "'l";
}

}  // namespace

bool is_within_gpt2_word(std::string_view bytes) {
  const bool is_ascii = std::ranges::all_of(
      bytes, [](char letter) { return static_cast<unsigned char>(letter) < 0x80; });
  return !is_ascii || bytes.empty() || is_begin_of_contraction(bytes) ||
         first_piece(bytes, bytes, "token") == bytes.size();
}

std::size_t first_piece(std::string_view text, std::string_view whole, std::string_view source) {
  if (std::size_t bytes = contraction(text)) return bytes;
  const Reader reader{text, whole, source};
  const std::size_t begin = text.front() == ' ' ? 1 : 0;
  if (begin < text.size())
    if (Kind kind = kind_of(reader.at(begin).code_point); kind != Kind::space)
      return reader.end_of_run(begin, kind);
  // White space, of which the last character is left for the word that follows.
  std::size_t last = 0, end = 0;
  while (end < text.size()) {
    Character one = reader.at(end);
    if (kind_of(one.code_point) != Kind::space) return last > 0 ? last : end;
    last = end;
    end += one.bytes;
  }
  return end;
}

}  // namespace lockstep::data
