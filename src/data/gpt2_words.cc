#include "data/gpt2_words.h"

#include "base/check.h"
#include "data/utf8.h"

#include <algorithm>
#include <array>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace lockstep::data {
namespace {

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// of github.com/openai/gpt-2, src/encoder.py. \s is spelled out, because PCRE2's also matches
// U+180E, which has not been white space since Unicode 6.3.
constexpr std::string_view pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\t-\r\x{85}\p{Z}\p{L}\p{N}]+)"
    R"(|[\t-\r\x{85}\p{Z}]+(?![^\t-\r\x{85}\p{Z}])|[\t-\r\x{85}\p{Z}]+)";

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

const pcre2_code* compiled_pattern(std::string_view source) {
  using Code = std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)>;
  static const Code code = [source] {
    int error = 0;
    std::size_t offset = 0;
    Code made(pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                            nullptr),
              pcre2_code_free);
    check_input(made != nullptr,
                "reading {}: PCRE2 cannot compile the pattern of GPT-2's words: {}", source,
                message_of(error));
    // If this fails, pcre2_match() interprets the pattern.
    pcre2_jit_compile(made.get(), PCRE2_JIT_COMPLETE);
    return made;
  }();
  return code.get();
}

// Returns true for the first half of a contraction, such as "'r" of "'re": a merge may make it, but
// it is never a word.
bool is_begin_of_contraction(std::string_view text) {
  return text == "'r" || text == "'v" || text == "'l";
}

}  // namespace

struct Gpt2Words::Match {
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data{
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free};
};

Gpt2Words::Gpt2Words(std::string_view text, std::string_view source)
    : text_(text), source_(source), match_(std::make_unique<Match>()) {
  for_each_character(text, source, [](char32_t, std::size_t) {});  // throws
}

Gpt2Words::~Gpt2Words() = default;

std::string_view Gpt2Words::next() {
  if (offset_ == text_.size()) return {};
  // The text is known to be UTF-8. Otherwise PCRE2 would check the whole rest of the text for each
  // word.
  const int count = pcre2_match(compiled_pattern(source_), units(text_), text_.size(), offset_,
                                PCRE2_NO_UTF_CHECK, match_->data.get(), nullptr);
  if (count <= 0)
    throw BadInput(formatted("reading {}: PCRE2 cannot split the text into words at {}: {}",
                             source_, position(text_, offset_), message_of(count)));
  const std::size_t begin = offset_;
  offset_ = pcre2_get_ovector_pointer(match_->data.get())[1];
  return text_.substr(begin, offset_ - begin);
}

bool is_within_gpt2_word(std::string_view bytes, std::string_view source) {
  const bool is_ascii = std::ranges::all_of(
      bytes, [](char letter) { return static_cast<unsigned char>(letter) < 0x80; });
  return !is_ascii || is_begin_of_contraction(bytes) ||
         Gpt2Words(bytes, source).next().size() == bytes.size();
}

}  // namespace lockstep::data
