// Text that a gpt or another model of texts makes up, passed on while it is made.
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
  std::string prompt;         // at least one token, all of them in the vocabulary
  std::int64_t tokens = 200;  // to make behind it
  double temperature = 1;     // 0: always the likeliest token
  std::int64_t top_k = 0;     // draw among the k likeliest only; 0: among all
  std::uint64_t seed = 1337;
  bool with_prompt = false;  // `take` gets the prompt first
};

// Calls `take` with what was made, token by token: always whole characters, and U+FFFD for bytes
// that are no UTF-8. The tokens are those of one call of Gpt::generate() with a generator of that
// seed. Where ranks have sharded the model, all of them call together.
//
// BadInput as check_prompt().
void generate_text(models::Gpt model, const data::Tokenizer& tokenizer,
                   const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take);

// The same with any model: `generate` gives `count` tokens behind these, of which it sees `block`.
using GenerateTokens = std::function<at::Tensor(const at::Tensor& ids, std::int64_t count,
                                                const models::GenerateOptions& options)>;
void generate_text(const GenerateTokens& generate, std::int64_t block,
                   const data::Tokenizer& tokenizer, const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take);

// BadInput when there is no prompt, or it has a character that is not in the vocabulary; names the
// first.
void check_prompt(const data::Tokenizer& tokenizer, const std::string& prompt);

// What to begin with when nothing is given: a new line, or the first token of a vocabulary that has
// none.
[[nodiscard]] std::string default_prompt(const data::Tokenizer& tokenizer);

}  // namespace lockstep::train

#pragma GCC visibility pop
