#include <lockstep/train/generation.h>

#include "base/check.h"
#include "data/utf8_stream.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace lockstep::train {
namespace {

at::Tensor prompt_tokens(const data::Vocabulary& vocabulary, const std::string& prompt) {
  check_input(!prompt.empty(), "the prompt: expected at least one character, found none");
  return vocabulary.encode(prompt, "the prompt").to(at::kLong).unsqueeze(0);
}

}  // namespace

void check_prompt(const data::Vocabulary& vocabulary, const std::string& prompt) {
  (void)prompt_tokens(vocabulary, prompt);
}

void generate_text(models::Gpt model, const data::Vocabulary& vocabulary,
                   const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take) {
  generate_text(
      [&](const at::Tensor& ids, std::int64_t count, const models::GenerateOptions& how) {
        return model->generate(ids, count, how);
      },
      model->options().block, vocabulary, options, take);
}

void generate_text(const GenerateTokens& generate, std::int64_t block,
                   const data::Vocabulary& vocabulary, const GenerationOptions& options,
                   const std::function<void(std::string_view)>& take) {
  const models::GenerateOptions how{.temperature = options.temperature,
                                    .top_k = options.top_k,
                                    .generator = at::detail::createCPUGenerator(options.seed)};
  at::Tensor ids = prompt_tokens(vocabulary, options.prompt);
  data::Utf8Stream characters;
  if (options.with_prompt) take(characters.take(options.prompt));
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    // The model sees no more than its block.
    const std::int64_t seen = std::min(ids.size(1), block);
    ids = generate(ids.narrow(1, ids.size(1) - seen, seen), 1, how);
    take(characters.take(vocabulary.decode(ids[0].narrow(0, seen, 1))));
  }
  take(characters.finish());
}

std::string default_prompt(const data::Vocabulary& vocabulary) {
  const std::string alphabet = vocabulary.alphabet();
  bool has_new_line = vocabulary.is_bytes() || alphabet.find('\n') != std::string::npos;
  return has_new_line ? "\n" : vocabulary.decode(at::zeros({1}, at::kLong));
}

}  // namespace lockstep::train
