// Tokenizer: converts a model's texts to tokens and back, with one of four vocabularies.
#pragma once

#include <lockstep/data/bpe.h>
#include <lockstep/data/vocabulary.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::data {

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
