// Tokenizer: converts a model's texts to tokens and back, with one of four vocabularies.
#pragma once

#include <lockstep/data/bpe.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::data {

// Vocabulary: the characters of a text, and the number (token) of each.

// A value type; copies are independent. There are two kinds: all 256 bytes, which can encode any
// text, or the characters (Unicode code points of UTF-8) that occur in a given text, numbered in
// ascending order as in nanoGPT's character datasets.
class Vocabulary {
 public:
  [[nodiscard]] static Vocabulary bytes();
  // Returns the vocabulary of the characters in `text`. Throws BadInput if `text` is empty or not
  // UTF-8; the message refers to the text as `source`.
  [[nodiscard]] static Vocabulary characters(std::string_view text,
                                             std::string_view source = "text");

  // Converts to and from one string that can be stored in a file: "bytes", or "characters:"
  // followed by the characters in order as UTF-8.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static Vocabulary from_text(std::string_view text);

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] bool is_bytes() const { return symbols_.empty(); }
  // Returns the characters in order as UTF-8; empty for bytes.
  [[nodiscard]] std::string alphabet() const;

  // Returns one token per character: uint8 if size() <= 256, otherwise int32. Throws BadInput if a
  // character is not in the vocabulary; the message names the first one and its position (offset in
  // bytes, line and column from 1).
  [[nodiscard]] at::Tensor encode(std::string_view text, std::string_view source = "text") const;
  // Returns the text of a 1-D integer tensor. Throws InvalidArgument if a token is not below
  // size(); the message names the token.
  [[nodiscard]] std::string decode(const at::Tensor& tokens) const;

  friend bool operator==(const Vocabulary&, const Vocabulary&) = default;

 private:
  std::vector<char32_t> symbols_;  // ascending; empty for bytes
};

// A value type; copies share the immutable parts. Thread-safe.
class Tokenizer {
 public:
  Tokenizer(Vocabulary vocabulary);  // NOLINT: a vocabulary of characters or bytes is one
  // Byte-pair encoding. `size` is the size of the model's vocabulary; 0 means the size of the
  // encoding. Tokens above the encoding have no text, as in a padded vocabulary. Throws BadInput if
  // `size` is smaller than the encoding.
  explicit Tokenizer(Bpe bpe, std::int64_t size = 0);
  // Returns a tokenizer for a vocabulary of which only the size is known. A text is a list of
  // numbers, separated by spaces ("464 3290 318") or commas. Throws BadInput unless `size` is 1 to
  // 2^31.
  [[nodiscard]] static Tokenizer numbers(std::int64_t size);

  [[nodiscard]] std::int64_t size() const;
  // Returns the name of one token: "byte", "character" or "token".
  [[nodiscard]] std::string_view unit() const;
  // Returns the vocabulary if tokens are characters or bytes, otherwise null.
  [[nodiscard]] const Vocabulary* vocabulary() const;
  [[nodiscard]] const Bpe* bpe() const { return bpe_ ? &*bpe_ : nullptr; }

  // Returns the tokens as a 1-D integer tensor. Throws BadInput, naming `source`, if the text
  // cannot be expressed in these tokens.
  [[nodiscard]] at::Tensor encode(std::string_view text, std::string_view source = "text") const;
  // Returns the text of `tokens`. For a vocabulary of numbers, each number is preceded by a space.
  // Throws InvalidArgument if a token is not below size(); the message names the token.
  [[nodiscard]] std::string decode(const at::Tensor& tokens) const;

 private:
  Tokenizer() = default;

  std::optional<Vocabulary> vocabulary_;
  std::optional<Bpe> bpe_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
