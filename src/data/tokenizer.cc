#include <lockstep/data/tokenizer.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "data/index_tensor.h"
#include "data/utf8.h"

#include <lockstep/base/error.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::data {
namespace {

constexpr std::string_view bytes_text = "bytes";
constexpr std::string_view characters_text = "characters:";

template <class Token>
std::vector<Token> tokens_of(std::string_view text, std::string_view source,
                             const std::vector<char32_t>& symbols) {
  std::vector<std::int32_t> token_of(symbols.back() + 1, -1);
  for (std::size_t i = 0; i < symbols.size(); ++i)
    token_of[symbols[i]] = static_cast<std::int32_t>(i);
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for_each_character(text, source, [&](char32_t character, std::size_t offset) {
    const std::int32_t token = character < token_of.size() ? token_of[character] : -1;
    if (token < 0)
      throw BadInput(formatted(
          "reading {}: expected one of the {} characters of the vocabulary, found {} at {}", source,
          symbols.size(), described(character), position(text, offset)));
    tokens.push_back(static_cast<Token>(token));
  });
  return tokens;
}

}  // namespace

Vocabulary Vocabulary::bytes() { return {}; }

Vocabulary Vocabulary::characters(std::string_view text, std::string_view source) {
  std::set<char32_t> found;
  for_each_character(text, source,
                     [&](char32_t character, std::size_t) { found.insert(character); });
  check_input(!found.empty(), "reading {}: expected some text, found none", source);
  Vocabulary vocabulary;
  vocabulary.symbols_.assign(found.begin(), found.end());
  return vocabulary;
}

std::string Vocabulary::alphabet() const {
  std::string text;
  for (char32_t symbol : symbols_) text += to_utf8(symbol);
  return text;
}

std::string Vocabulary::to_text() const {
  return is_bytes() ? std::string(bytes_text) : std::string(characters_text) + alphabet();
}

Vocabulary Vocabulary::from_text(std::string_view text) {
  if (text == bytes_text) return bytes();
  if (text.starts_with(characters_text)) {
    Vocabulary vocabulary = characters(text.substr(characters_text.size()), "a vocabulary");
    if (vocabulary.to_text() == text) return vocabulary;
  }
  throw BadInput(
      "reading a vocabulary: expected \"bytes\", or \"characters:\" and characters in ascending "
      "order, found \"" +
      escaped(text, 40) + "\"");
}

std::int64_t Vocabulary::size() const {
  return is_bytes() ? 256 : static_cast<std::int64_t>(symbols_.size());
}

at::Tensor Vocabulary::encode(std::string_view text, std::string_view source) const {
  if (is_bytes()) return at::tensor(std::vector<std::uint8_t>(text.begin(), text.end()), at::kByte);
  if (size() <= 256) return at::tensor(tokens_of<std::uint8_t>(text, source, symbols_), at::kByte);
  return at::tensor(tokens_of<std::int32_t>(text, source, symbols_), at::kInt);
}

std::string Vocabulary::decode(const at::Tensor& tokens) const {
  std::string text;
  for (std::int64_t token : token_list("Vocabulary::decode", tokens, size()))
    text += is_bytes() ? std::string(1, static_cast<char>(token))
                       : to_utf8(symbols_[static_cast<std::size_t>(token)]);
  return text;
}

namespace {

constexpr std::int64_t most_tokens = std::int64_t{1} << 31;
constexpr std::string_view between = " ,\t\r\n";

at::Tensor numbers_in(std::string_view text, std::string_view source, std::int64_t size) {
  std::vector<std::int64_t> tokens;
  for (std::size_t begin = text.find_first_not_of(between); begin != std::string_view::npos;
       begin = text.find_first_not_of(between, begin)) {
    const std::size_t end = std::min(text.find_first_of(between, begin), text.size());
    const std::string word(text.substr(begin, end - begin));
    const std::optional<std::int64_t> token = parse_integer(word);
    check_input(token && *token >= 0 && *token < size,
                "{}: expected token ids from 0 to {}, found '{}'", source, size - 1, escaped(word));
    tokens.push_back(*token);
    begin = end;
  }
  return at::tensor(tokens, at::kLong);
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), size_(vocabulary_->size()) {}

Tokenizer::Tokenizer(Bpe bpe, std::int64_t size)
    : bpe_(std::move(bpe)), size_(size > 0 ? size : bpe_->size()) {
  check_input(size_ >= bpe_->size(),
              "expected a vocabulary of at least the {} tokens of the "
              "byte-pair encoding, found {}",
              bpe_->size(), size_);
}

Tokenizer Tokenizer::numbers(std::int64_t size) {
  check_input(size >= 1 && size <= most_tokens, "expected a vocabulary of 1 to {} tokens, found {}",
              most_tokens, size);
  Tokenizer tokenizer;
  tokenizer.size_ = size;
  return tokenizer;
}

std::int64_t Tokenizer::size() const { return size_; }

std::string_view Tokenizer::unit() const {
  if (!vocabulary_) return "token";
  return vocabulary_->is_bytes() ? "byte" : "character";
}

const Vocabulary* Tokenizer::vocabulary() const { return vocabulary_ ? &*vocabulary_ : nullptr; }

at::Tensor Tokenizer::encode(std::string_view text, std::string_view source) const {
  if (vocabulary_) return vocabulary_->encode(text, source);
  if (bpe_) return bpe_->encode(text, source);
  return numbers_in(text, source, size_);
}

std::string Tokenizer::decode(const at::Tensor& tokens) const {
  if (vocabulary_) return vocabulary_->decode(tokens);
  std::vector<std::int64_t> list = token_list("Tokenizer::decode", tokens, size_);
  std::string text;
  if (!bpe_) {
    for (std::int64_t token : list) text += formatted(" {}", token);
    return text;
  }
  std::erase_if(list, [this](std::int64_t token) { return token >= bpe_->size(); });
  return bpe_->decode(at::tensor(list, at::kLong));
}

}  // namespace lockstep::data
