// Bpe: GPT-2's byte-pair encoding (Sennrich et al., ACL 2016; github.com/openai/gpt-2), read from
// its two files:
//
//   auto bpe = lockstep::data::Bpe::load("vocab.json", "merges.txt");
//   at::Tensor tokens = bpe.encode("Hello world");       // 15496, 995
//   bpe.decode(tokens);                                  // "Hello world"
//
// A text is split into words like GPT-2's (a space belongs to the word after it). Models with
// another word pattern (Qwen, Llama 3) are refused if their files show it. In each word, the two
// neighbours whose merge comes first in the list are merged, until no merge applies. Every UTF-8
// text can be encoded, and decode() returns it byte for byte.
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

// A value type; copies share the immutable tables. Thread-safe.
class Bpe {
 public:
  // `vocabulary`: a JSON object that maps tokens, in GPT-2's spelling of bytes as printable
  // characters, to their numbers, 0 to its size - 1. `merges`: two tokens per line, separated by a
  // space, in descending priority; a first line that begins with "#version" and empty lines at the
  // end are skipped. Throws BadInput with a one-line message that names the file and the line of an
  // invalid merge: not two tokens, a token that no earlier merge makes, a duplicate, or a result
  // that is not in the vocabulary.
  //
  // Also throws BadInput if the tables were made for another word pattern than GPT-2's: if a merge
  // crosses the borders of GPT-2's words, or if tokenizer.json, tokenizer_config.json or
  // config.json in the folder of `vocabulary`, read as transformers does, selects another pattern.
  // Without these files, the pattern is assumed to be GPT-2's.
  [[nodiscard]] static Bpe load(const std::filesystem::path& vocabulary,
                                const std::filesystem::path& merges);

  [[nodiscard]] std::int64_t size() const;
  // Returns a hash of the tables. Equal tables have the same hash, even if their files differ.
  [[nodiscard]] std::uint64_t fingerprint() const;
  // Returns the number of a token in GPT-2's spelling ("<|endoftext|>", "Ġworld"); std::nullopt if
  // there is no such token.
  [[nodiscard]] std::optional<std::int64_t> find(std::string_view token) const;

  // Returns int32 [tokens]. Text that looks like a special token ("<|endoftext|>") is split like
  // other text. Words are split by the Unicode version of the installed libpcre2. Throws BadInput,
  // with `source` and the place, if the text is not UTF-8 or a word has 2^31 bytes.
  [[nodiscard]] at::Tensor encode(std::string_view text, std::string_view source = "text") const;
  // Returns the bytes of an integer tensor of tokens. Throws InvalidArgument, which names the
  // token, if a token is not below size().
  [[nodiscard]] std::string decode(const at::Tensor& tokens) const;

 private:
  struct Tables;
  explicit Bpe(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace lockstep::data

#pragma GCC visibility pop
