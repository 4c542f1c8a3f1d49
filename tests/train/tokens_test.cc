// --vocabulary bpe and tokens: a gpt on byte pairs and on token files.
#include "train/tasks/language_models.h"

#include "support/small_bpe.h"
#include "support/temporary_folder.h"
#include "support/torch/allocations.h"
#include "train/evaluator.h"
#include "train/messages.h"
#include "train/runs.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/data/text.h>
#include <lockstep/data/tokens.h>
#include <lockstep/train/generation.h>
#include <lockstep/train/saved_model.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

data::Bpe small_bpe(const TemporaryFolder& folder) {
  fs::create_directories(folder / "bpe");
  test::write_small_bpe(folder / "bpe");
  return data::Bpe::load(folder / "bpe" / "vocab.json", folder / "bpe" / "merges.txt");
}

RunSetup on_bpe(const TemporaryFolder& folder) {
  RunSetup options = tiny_gpt(folder);
  (void)small_bpe(folder);
  options.vocabulary = "bpe";
  options.bpe = folder / "bpe";
  return options;
}

RunSetup on_tokens(const TemporaryFolder& folder, at::ScalarType dtype = at::kUInt16) {
  RunSetup options = tiny_gpt(folder);
  const at::Tensor tokens = small_bpe(folder).encode(data::read_text(options.data));
  data::write_tokens(folder / "tokens.bin", tokens, dtype);
  options.data = folder / "tokens.bin";
  options.vocabulary = "tokens";
  options.vocabulary_size = 260;
  if (dtype == at::kUInt32) options.token_dtype = "uint32";
  return options;
}

std::string text_of(const fs::path& run, const std::string& prompt, const fs::path& bpe = {}) {
  SavedModel saved = read_model(run, bpe);
  std::string text;
  generate_text(gpt_of(saved), *saved.tokenizer,
                {.prompt = prompt, .tokens = 6, .temperature = 0, .with_prompt = true},
                [&](std::string_view more) { text += more; });
  return text;
}

TEST(OnBytePairs, ARunLearnsGoesOnAndIsRead) {
  TemporaryFolder folder;
  RunSetup options = on_bpe(folder);
  options.steps = 40;
  options.lr = 0.02;
  options.save_every = 20;
  run(2, options);
  const auto rows = metrics_of(options.out);
  EXPECT_LT(last_val_loss(options.out), 0.7 * rows.front()["loss"].get<double>());
  RunSetup again = cut_at(options, 20);
  run(2, again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  EXPECT_TRUE(text_of(options.out, "banana").starts_with("banana"));
  const SavedEvaluation found = evaluate_saved({.run = options.out}, Group());
  EXPECT_NEAR(found.val_loss, last_val_loss(options.out), 1e-5);
  EXPECT_NE(found.line.find(" bits_per_token="), std::string::npos) << found.line;
  EXPECT_NE(found.line.find(" bigram="), std::string::npos) << found.line;
}

// Equal tokens give equal models, whether they come from a text or from a file.
TEST(OnTokens, AFileTrainsTheModelThatItsTextDoes) {
  TemporaryFolder folder;
  RunSetup text = on_bpe(folder);
  text.vocabulary_size = 260;
  run(2, text);
  for (at::ScalarType dtype : {at::kUInt16, at::kUInt32}) {
    RunSetup tokens = on_tokens(folder, dtype);
    tokens.out += c10::toString(dtype);
    run(2, tokens);
    EXPECT_EQ(distance(text.out, tokens.out), 0) << c10::toString(dtype);
    EXPECT_EQ(last_val_loss(text.out), last_val_loss(tokens.out));
    RunSetup again = cut_at(tokens, 4);
    run(2, again);
    EXPECT_EQ(distance(tokens.out, again.out), 0);
    const SavedEvaluation found = evaluate_saved({.run = tokens.out}, Group());
    EXPECT_NEAR(found.val_loss, last_val_loss(tokens.out), 1e-5);
  }
}

// The logits of 4096 tokens with GPT-2's vocabulary would need 823 MB, and their softmax as much
// again.
TEST(OnTokens, AnEvaluationOfALargeVocabularyIsMadeInParts) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  data::write_tokens(folder / "tokens.bin", at::arange(8000) % 50257, at::kUInt16);
  options.data = folder / "tokens.bin";
  options.vocabulary = "tokens";
  options.vocabulary_size = 50257;
  options.block = 16;
  auto task = options.make();
  task->load(options, Group());
  EXPECT_EQ(task->evaluation_rows(), 4096 / 16);
  EXPECT_EQ(task->rows_at_once(), (1 << 23) / (16 * 50257));
  torch::manual_seed(3);
  const auto module = task->make_model();
  Evaluator evaluator(*task, module, Group(), {});
  double loss = 0;
  {
    const test::Allocations allocations;
    loss = evaluator.whole().loss;
    EXPECT_LE(allocations.peak(), 80 << 20) << "of 161 MB of logits, and their softmax";
  }
  // Equal to a single evaluation, up to rounding when sums are reordered.
  std::vector<std::size_t> all(static_cast<std::size_t>(task->validation_samples()));
  std::iota(all.begin(), all.end(), std::size_t{0});
  at::NoGradGuard no_gradients;
  module->eval();
  const Totals totals = task->measure(task->validation(all));
  EXPECT_NEAR(loss, totals.loss / totals.targets, 1e-5);
}

TEST(OnTokens, TextsAreNumbersOrThoseOfTheEncoding) {
  TemporaryFolder folder;
  RunSetup options = on_tokens(folder);
  run(1, options);
  const std::string numbers = text_of(options.out, "97 98");
  EXPECT_TRUE(numbers.starts_with("97 98 ")) << numbers;
  EXPECT_EQ(numbers.find_first_not_of("0123456789 "), std::string::npos) << numbers;
  EXPECT_TRUE(text_of(options.out, "ab", folder / "bpe").starts_with("ab"));
}

TEST(OnTokens, AFolderHasItsOwnValidationPart) {
  TemporaryFolder folder;
  RunSetup options = on_tokens(folder);
  const at::Tensor all = data::map_tokens(options.data).to(at::kInt);
  fs::create_directories(folder / "split");
  data::write_tokens(folder / "split" / "train.bin", all.narrow(0, 0, 900));
  data::write_tokens(folder / "split" / "val.bin", all.narrow(0, 900, 101));
  options.data = folder / "split";
  std::unique_ptr<Task> task = options.make();
  task->load(options, Group());
  EXPECT_EQ(task->validation_samples(), 13);  // blocks of 8
  run(1, options);
}

// The embedding may have more rows than there are tokens.
TEST(OnBytePairs, AVocabularyMayBePadded) {
  TemporaryFolder folder;
  RunSetup options = on_bpe(folder);
  options.vocabulary_size = 264;
  run(1, options);
  EXPECT_EQ(read_model(options.out).tensors.at("transformer.wte.weight").size(0), 264);
  EXPECT_TRUE(text_of(options.out, "ab").starts_with("ab"));
}

TEST(OnBytePairs, OtherTablesAreRefused) {
  TemporaryFolder folder;
  RunSetup options = on_bpe(folder);
  run(1, options);
  fs::create_directories(folder / "other");
  test::write_small_bpe(folder / "other", {"more"});
  const std::string text =
      test::message_of([&] { (void)read_model(options.out, folder / "other"); });
  EXPECT_NE(
      text.find("expected the byte-pair encoding that the model was trained with (260 tokens"),
      std::string::npos)
      << text;
  RunSetup again = options;
  again.resume = true;
  again.steps = 12;
  again.bpe = folder / "other";
  EXPECT_NE(test::message_of([&] {
              (void)train(again, Group());
            }).find("expected the byte-pair encoding that the model was trained with"),
            std::string::npos);
  // Without tables, the model can be read, and its tokens are numbers.
  fs::remove_all(folder / "bpe");
  EXPECT_TRUE(text_of(options.out, "97").starts_with("97 "));
}

TEST(Tokens, WhatDoesNotFitIsOneLine) {
  TemporaryFolder folder;
  auto refused = [&](RunSetup options) {
    std::string text = test::message_of([&] { check_run(options, 1); });
    if (text == "nothing was thrown") {
      text = test::message_of([&] { (void)train(options, Group()); });
    }
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  };
  RunSetup options = on_bpe(folder);
  options.bpe.clear();
  EXPECT_EQ(refused(options),
            "--vocabulary bpe needs --bpe, the folder of vocab.json and merges.txt");
  options.bpe = folder / "nothing";
  EXPECT_NE(refused(options).find("expected a folder of vocab.json and merges.txt"),
            std::string::npos);
  options.bpe = folder / "bpe";
  options.vocabulary_size = 100;
  EXPECT_NE(refused(options).find("expected a vocabulary of at least the 260 tokens"),
            std::string::npos);
  options = tiny_gpt(folder);
  options.bpe = folder / "bpe";
  EXPECT_EQ(refused(options), "--bpe needs --vocabulary bpe or tokens, found chars");
  options = on_tokens(folder);
  options.vocabulary_size.reset();
  EXPECT_EQ(refused(options), "--vocabulary tokens needs --vocabulary-size, or --bpe");
  options.vocabulary_size = 120;
  EXPECT_NE(refused(options).find("expected tokens from 0 to 119, found "), std::string::npos);
  options = on_tokens(folder);
  std::ofstream(options.data, std::ios::app) << 'x';
  EXPECT_NE(refused(options).find("expected tokens of 2 bytes (UInt16), found a file of "),
            std::string::npos);
}

// The first token of the text, a byte order mark, is a part of a character.
TEST(OnBytePairs, ATextWhoseFirstTokenHasNoTextIsSampled) {
  TemporaryFolder folder;
  RunSetup options = on_bpe(folder);
  const std::string text = data::read_text(options.data);
  std::ofstream(options.data) << "\xef\xbb\xbf" << text;
  options.sample = 5;
  run(1, options);
  EXPECT_TRUE(checkpoint::latest_checkpoint(options.out).has_value());
}

TEST(OnBytePairs, ARunWhoseEncodingWasMovedIsEvaluated) {
  TemporaryFolder folder;
  RunSetup options = on_bpe(folder);
  run(1, options);
  fs::rename(folder / "bpe", folder / "moved");
  const std::string text =
      test::message_of([&] { (void)evaluate_saved({.run = options.out}, Group()); });
  EXPECT_NE(text.find("names the encoding " + (folder / "bpe").string()), std::string::npos)
      << text;
  EXPECT_NE(text.find("name it with --bpe"), std::string::npos) << text;
  const SavedEvaluation found =
      evaluate_saved({.run = options.out, .bpe = folder / "moved"}, Group());
  EXPECT_NEAR(found.val_loss, last_val_loss(options.out), 1e-5);
}

TEST(OnTokens, AnotherTextIsMeasuredThoughThatOfTheRunHasChanged) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  fs::copy(options.data, folder / "other.txt");
  std::ofstream(options.data) << "ZZZ";
  const SavedEvaluation found =
      evaluate_saved({.run = options.out, .data = folder / "other.txt"}, Group());
  EXPECT_EQ(found.line.find("bigram="), std::string::npos) << found.line;
}

}  // namespace
}  // namespace lockstep::train
