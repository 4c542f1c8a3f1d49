#include <lockstep/train/generation.h>

#include "base/check.h"
#include "data/utf8.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace lockstep::train {
namespace {

at::Tensor prompt_tokens(const data::Tokenizer& tokenizer, const std::string& prompt) {
  check_input(!prompt.empty(), "the prompt: expected at least one character, found none");
  const at::Tensor tokens = tokenizer.encode(prompt, "the prompt").to(at::kLong);
  check_input(tokens.size(0) > 0, "the prompt: expected at least one token, found none");
  return tokens.unsqueeze(0);
}

}  // namespace

void check_prompt(const data::Tokenizer& tokenizer, const std::string& prompt) {
  (void)prompt_tokens(tokenizer, prompt);
}

void generate_text(models::Gpt model, const data::Tokenizer& tokenizer,
                   const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take) {
  generate_text(
      [&](const at::Tensor& ids, std::int64_t count, const models::GenerateOptions& how) {
        return model->generate(ids, count, how);
      },
      model->options().context_length, tokenizer, options, take);
}

void generate_text(const GenerateTokens& generate, std::int64_t block,
                   const data::Tokenizer& tokenizer, const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take) {
  const models::GenerateOptions how{.temperature = options.temperature,
                                    .top_k = options.top_k,
                                    .generator = at::detail::createCPUGenerator(options.seed)};
  at::Tensor ids = prompt_tokens(tokenizer, options.prompt);
  data::Utf8Stream characters;
  if (options.with_prompt) take(characters.take(options.prompt));
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    // The model sees at most `block` tokens.
    const std::int64_t seen = std::min(ids.size(1), block);
    ids = generate(ids.narrow(1, ids.size(1) - seen, seen), 1, how);
    take(characters.take(tokenizer.decode(ids[0].narrow(0, seen, 1))));
  }
  take(characters.finish());
}

std::string default_prompt(const data::Tokenizer& tokenizer) {
  const data::Vocabulary* vocabulary = tokenizer.vocabulary();
  const bool has_new_line =
      tokenizer.bpe() != nullptr ||
      (vocabulary != nullptr &&
       (vocabulary->is_bytes() || vocabulary->alphabet().find('\n') != std::string::npos));
  return has_new_line ? "\n" : tokenizer.decode(at::zeros({1}, at::kLong));
}

}  // namespace lockstep::train
