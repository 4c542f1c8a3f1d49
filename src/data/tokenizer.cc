#include <lockstep/data/tokenizer.h>

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"

#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::data {
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
                "{}: expected token ids from 0 to {}, found '{}'", source, size - 1, visible(word));
    tokens.push_back(*token);
    begin = end;
  }
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, tensor.data_ptr<std::int64_t>());
  return tensor;
}

std::vector<std::int64_t> list_of(const at::Tensor& tokens, std::int64_t size) {
  const at::Tensor all = tokens.to(at::kCPU, at::kLong).contiguous().view(-1);
  const auto* first = all.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> list(first, first + all.numel());
  for (std::int64_t token : list)
    lockstep::check(token >= 0 && token < size,
                    "Tokenizer::decode: expected tokens from 0 to {}, found {}", size - 1, token);
  return list;
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
  const std::vector<std::int64_t> list = list_of(tokens, size_);
  std::string text;
  if (!bpe_) {
    for (std::int64_t token : list) text += formatted(" {}", token);
    return text;
  }
  at::Tensor with_text = at::empty({static_cast<std::int64_t>(list.size())}, at::kLong);
  auto* end =
      std::ranges::copy_if(list, with_text.data_ptr<std::int64_t>(), [this](std::int64_t token) {
        return token < bpe_->size();
      }).out;
  return bpe_->decode(with_text.narrow(0, 0, end - with_text.data_ptr<std::int64_t>()));
}

}  // namespace lockstep::data
