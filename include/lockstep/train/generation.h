// Text generation by a gpt or another language model, with the text streamed as it is generated.
#pragma once

#include <lockstep/data/tokenizer.h>
#include <lockstep/models/gpt.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct GenerationOptions {
  std::string prompt;         // at least one token; all tokens are in the vocabulary
  std::int64_t tokens = 200;  // number of tokens to generate after the prompt
  double temperature = 1;     // 0: always the most likely token
  std::int64_t top_k = 0;     // sample among the k most likely tokens; 0: among all
  std::uint64_t seed = 1337;
  bool with_prompt = false;  // `take` gets the prompt first
};

// Generates text and calls `take` with each new piece: always whole characters, with U+FFFD for
// bytes that are not valid UTF-8. The tokens are those of one call of Gpt::generate() with a
// generator of that seed. If the model is sharded, the call is collective.
//
// Throws BadInput in the cases of check_prompt().
void generate_text(models::Gpt model, const data::Tokenizer& tokenizer,
                   const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take);

// Overload for any model. `generate` returns `count` tokens that follow `ids`; the model sees the
// last `block` tokens.
using GenerateTokens = std::function<at::Tensor(const at::Tensor& ids, std::int64_t count,
                                                const models::GenerateOptions& options)>;
void generate_text(const GenerateTokens& generate, std::int64_t block,
                   const data::Tokenizer& tokenizer, const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take);

// Throws BadInput if the prompt is empty or has characters that are not in the vocabulary; the
// message names the first one.
void check_prompt(const data::Tokenizer& tokenizer, const std::string& prompt);

// Returns the prompt to use if none is given: a new line, or the first token of a vocabulary
// without a new line.
[[nodiscard]] std::string default_prompt(const data::Tokenizer& tokenizer);

}  // namespace lockstep::train

#pragma GCC visibility pop
