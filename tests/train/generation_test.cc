#include <lockstep/train/generation.h>

#include <lockstep/base/error.h>

#include "train/messages.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace lockstep::train {
namespace {

models::Gpt small_model(std::int64_t vocabulary) {
  torch::manual_seed(3);
  models::Gpt model(models::GptOptions{.layers = 2,
                                       .heads = 2,
                                       .hidden_size = 16,
                                       .context_length = 8,
                                       .vocabulary = vocabulary,
                                       .dropout = 0.5});
  at::NoGradGuard no_gradients;
  // Makes the probabilities less even.
  for (at::Tensor& parameter : model->parameters()) parameter.mul_(4);
  return model;
}

std::string generated(models::Gpt model, const data::Tokenizer& vocabulary,
                      const GenerationOptions& options) {
  std::string text;
  generate_text(model, vocabulary, options, [&](std::string_view more) { text += more; });
  return text;
}

// A plain version of nanoGPT's loop.
std::string plain_loop(models::Gpt model, const data::Tokenizer& vocabulary,
                       const GenerationOptions& options) {
  at::NoGradGuard no_gradients;
  model->eval();
  at::Generator generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> ids;
  at::Tensor prompt = vocabulary.encode(options.prompt).to(at::kLong);
  for (std::int64_t i = 0; i < prompt.size(0); ++i) ids.push_back(prompt[i].item<std::int64_t>());
  std::size_t begin = ids.size();
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    auto seen = std::min<std::int64_t>(static_cast<std::int64_t>(ids.size()),
                                       model->options().context_length);
    at::Tensor row = at::tensor(std::vector<std::int64_t>(ids.end() - seen, ids.end()), at::kLong);
    at::Tensor logits = model->forward(row.unsqueeze(0))[0][-1];
    std::int64_t next = 0;
    if (options.temperature == 0) {
      next = logits.argmax().item<std::int64_t>();
    } else {
      logits = logits / options.temperature;
      if (options.top_k > 0) {
        at::Tensor least = std::get<0>(logits.topk(options.top_k))[-1];
        logits = logits.masked_fill(logits < least, -INFINITY);
      }
      next = at::multinomial(at::softmax(logits, -1), 1, false, generator).item<std::int64_t>();
    }
    ids.push_back(next);
  }
  std::vector<std::int64_t> made(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
  return vocabulary.decode(at::tensor(made, at::kLong));
}

TEST(Generation, IsAPlainLoopOverTheModel) {
  data::Vocabulary vocabulary = data::Vocabulary::characters("abcdé∞\n");
  models::Gpt model = small_model(vocabulary.size());
  for (const GenerationOptions& options :
       {GenerationOptions{.prompt = "ab", .tokens = 60},
        GenerationOptions{.prompt = "é", .tokens = 60, .temperature = 0.5, .seed = 9},
        GenerationOptions{.prompt = "abcabcabcabc∞", .tokens = 60, .top_k = 2},
        GenerationOptions{.prompt = "a", .tokens = 60, .temperature = 0},
        GenerationOptions{.prompt = "a", .tokens = 0}}) {
    EXPECT_EQ(generated(model, vocabulary, options), plain_loop(model, vocabulary, options));
  }
}

TEST(Generation, ThePromptIsWrittenWhenAskedFor) {
  models::Gpt model = small_model(256);
  GenerationOptions options{.prompt = "a\xff", .tokens = 0, .with_prompt = true};
  EXPECT_EQ(generated(model, data::Vocabulary::bytes(), options), "a\xef\xbf\xbd");
}

TEST(Generation, ASeedSaysWhichText) {
  data::Vocabulary vocabulary = data::Vocabulary::characters("abcd");
  models::Gpt model = small_model(vocabulary.size());
  GenerationOptions options{.prompt = "a", .tokens = 60};
  std::string first = generated(model, vocabulary, options);
  EXPECT_EQ(generated(model, vocabulary, options), first);
  options.seed = 2;
  EXPECT_NE(generated(model, vocabulary, options), first);
}

TEST(Generation, ManyBytesMakeCharactersOrAreReplaced) {
  models::Gpt model = small_model(256);
  GenerationOptions options{.prompt = "\xc3", .tokens = 300, .temperature = 2};
  std::vector<std::string> parts;
  generate_text(model, data::Vocabulary::bytes(), options,
                [&](std::string_view part) { parts.emplace_back(part); });
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) (void)data::Vocabulary::characters(part);  // throws unless it is UTF-8
    text += part;
  }
  EXPECT_NE(text.find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_GT(parts.size(), 300u);
}

TEST(Generation, APromptOutsideTheVocabularyIsOneLine) {
  data::Vocabulary vocabulary = data::Vocabulary::characters("abcd");
  models::Gpt model = small_model(vocabulary.size());
  auto refusal = [&](const std::string& prompt) {
    return test::message_of([&] { (void)generated(model, vocabulary, {.prompt = prompt}); });
  };
  EXPECT_EQ(refusal("abé"),
            "reading the prompt: expected one of the 4 characters of the vocabulary, found 'é' "
            "(U+00E9) at offset 2 (line 1, column 3)");
  EXPECT_EQ(refusal(""), "the prompt: expected at least one character, found none");
  EXPECT_EQ(refusal("a\xff").find('\n'), std::string::npos);
}

TEST(Generation, BeginsWithALineWhenNothingIsGiven) {
  EXPECT_EQ(default_prompt(data::Vocabulary::characters("ab\n")), "\n");
  EXPECT_EQ(default_prompt(data::Vocabulary::characters("∞é")), "é");
  EXPECT_EQ(default_prompt(data::Vocabulary::bytes()), "\n");
}

}  // namespace
}  // namespace lockstep::train
