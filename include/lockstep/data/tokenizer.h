// Tokenizer: how a model's texts become tokens and tokens become text, by one of four vocabularies.
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

// A value; copies share what is never changed. Any number of threads may call.
class Tokenizer {
 public:
  Tokenizer(Vocabulary vocabulary);  // NOLINT: a vocabulary of characters or bytes is one
  // Byte-pair encoding. `size`: of the model's vocabulary, 0: the encoding's own. A larger one has
  // tokens without text, as where a vocabulary is padded. BadInput for a smaller one.
  explicit Tokenizer(Bpe bpe, std::int64_t size = 0);
  // Nothing is known but how many there are. A text is their numbers: "464 3290 318", or with
  // commas. BadInput unless `size` is 1 to 2^31.
  [[nodiscard]] static Tokenizer numbers(std::int64_t size);

  [[nodiscard]] std::int64_t size() const;
  // What one token is: "byte", "character", "token".
  [[nodiscard]] std::string_view unit() const;
  // Null but where tokens are characters or bytes.
  [[nodiscard]] const Vocabulary* vocabulary() const;
  [[nodiscard]] const Bpe* bpe() const { return bpe_ ? &*bpe_ : nullptr; }

  // One dim, of integers. BadInput with `source` where the text cannot be said in these tokens.
  [[nodiscard]] at::Tensor encode(std::string_view text, std::string_view source = "text") const;
  // Of numbers: each behind a blank. InvalidArgument names a token that is not below size().
  [[nodiscard]] std::string decode(const at::Tensor& tokens) const;

 private:
  Tokenizer() = default;

  std::optional<Vocabulary> vocabulary_;
  std::optional<Bpe> bpe_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
