// Bpe: GPT-2's byte-pair encoding (Sennrich et al., ACL 2016; github.com/openai/gpt-2), from the
// two files that such vocabularies come in:
//
//   auto bpe = lockstep::data::Bpe::load("vocab.json", "merges.txt");
//   at::Tensor tokens = bpe.encode("Hello world");       // 15496, 995
//   bpe.decode(tokens);                                  // "Hello world"
//
// A text is cut into words as GPT-2 cuts it (a blank belongs to the word behind it); models whose
// words have another pattern (Qwen, Llama 3) are refused as far as their files show it. In each
// word the two neighbours whose merge stands first in the list become one token, until none is
// left. Every text in UTF-8 has tokens, and decode() gives it back byte for byte.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#pragma GCC visibility push(default)

namespace lockstep::data {

// A value; copies share what is never changed. Any number of threads may call.
class Bpe {
 public:
  // `vocabulary`: a JSON object of tokens and their numbers, 0 to its size - 1, in GPT-2's spelling
  // of bytes as printing characters. `merges`: two tokens with a blank between on each line, the
  // most urgent first; a first line that begins with "#version" and empty lines at the end are
  // passed by. BadInput in one line that names the file, and the line of a merge that is broken: of
  // other than two tokens, of one that is in no earlier merge, one that comes twice, one whose
  // result is not in the vocabulary.
  //
  // Also BadInput if the tables were made for words of another pattern than GPT-2's: a merge across
  // the borders of GPT-2's words, or a tokenizer.json, tokenizer_config.json or config.json in the
  // folder of `vocabulary` that says so, as transformers reads them. Tables without these files,
  // such as your own, count as GPT-2's.
  [[nodiscard]] static Bpe load(const std::filesystem::path& vocabulary,
                                const std::filesystem::path& merges);

  [[nodiscard]] std::int64_t size() const;
  // Returns a hash of the tables: equal for equal tables, whatever the files look like.
  [[nodiscard]] std::uint64_t fingerprint() const;
  // The number of a token in GPT-2's spelling: "<|endoftext|>", "Ġworld".
  [[nodiscard]] std::optional<std::int64_t> find(std::string_view token) const;

  // Returns int32 [tokens]. Text that looks like a special token ("<|endoftext|>") is split like
  // other text. Words are split by the Unicode version of the installed libpcre2. Throws BadInput,
  // with `source` and the place, if the text is not UTF-8 or a word has 2^31 bytes.
  [[nodiscard]] at::Tensor encode(std::string_view text, std::string_view source = "text") const;
  // The bytes of a tensor of integers. InvalidArgument names a token that is not below size().
  [[nodiscard]] std::string decode(const at::Tensor& tokens) const;

 private:
  struct Tables;
  explicit Bpe(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
