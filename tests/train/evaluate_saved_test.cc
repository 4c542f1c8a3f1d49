#include "train/evaluate_saved.h"

#include <lockstep/data/text.h>
#include <lockstep/train/saved_model.h>

#include "base/format.h"
#include "data/bigram.h"
#include "train/messages.h"
#include "train/runs.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

SavedEvaluation alone(const EvaluateOptions& options) { return evaluate_saved(options, Group()); }

std::string refusal(const EvaluateOptions& options) {
  std::string message = test::message_of([&] { (void)alone(options); });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(EvaluateSaved, GivesTheLossThatTheRunEndedWith) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  double expected = last_val_loss(options.out);
  SavedEvaluation found = alone({.run = options.out});
  EXPECT_EQ(found.val_loss, expected);
  data::Text text = data::load_text(options.data);
  EXPECT_EQ(found.line,
            formatted("val_loss={:#.5g} bits_per_character={:#.5g} bigram={:#.4g} step=8 model={}",
                      expected, expected / std::log(2.0),
                      data::bigram_cross_entropy(text.train, text.validation, 8),
                      options.out + "/model.safetensors"));
  RunSetup sharded = options;
  sharded.out += "-full";
  sharded.shard = ShardKind::full;
  run(2, sharded);
  for (int ranks : {1, 2, 3})
    test::run_group(test::Engine::shm, ranks, [&](Group group) {
      EXPECT_NEAR(evaluate_saved({.run = sharded.out}, group).val_loss, last_val_loss(sharded.out),
                  1e-6);
    });
}

TEST(EvaluateSaved, MeasuresAllOfAnotherText) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  fs::path alone_file = folder / "alone.safetensors", other = folder / "other.txt";
  fs::copy(fs::path(options.out) / "model.safetensors", alone_file);
  std::ofstream(other) << "banana cab abacus\nban";
  SavedModel saved = read_model(alone_file);
  models::Gpt model = gpt_of(saved);
  at::NoGradGuard no_gradients;
  at::Tensor tokens = saved.tokenizer->encode("banana cab abacus\nban").to(at::kLong);
  double sum = 0;  // one target at a time, within its block
  for (std::int64_t target = 1; target < tokens.size(0); ++target) {
    std::int64_t begin = (target - 1) / 8 * 8;
    at::Tensor seen = tokens.narrow(0, begin, target - begin).unsqueeze(0);
    sum -= at::log_softmax(model->forward(seen)[0][-1], -1)[tokens[target]].item<double>();
  }
  double expected = sum / static_cast<double>(tokens.size(0) - 1);
  SavedEvaluation found = alone({.run = alone_file, .data = other});
  EXPECT_NEAR(found.val_loss, expected, 1e-5);
  EXPECT_EQ(found.line.find("bigram"), std::string::npos) << found.line;  // there is no own text
  // The bigram model of the run's own text, if the run's folder is known.
  found = alone({.run = options.out, .data = other});
  double bigram = data::bigram_cross_entropy(data::load_text(options.data).train, tokens, 8);
  EXPECT_NE(found.line.find(formatted(" bigram={:#.4g} ", bigram)), std::string::npos)
      << found.line;
}

TEST(EvaluateSaved, DigitsHaveAnAccuracyAndMayBeMeasuredInPart) {
  TemporaryFolder folder;
  RunSetup options = tiny_mnist(folder);
  test::write_tiny_digits(folder.path(), 50, 600);
  run(1, options);
  SavedEvaluation whole = alone({.run = options.out});
  EXPECT_EQ(whole.val_loss, last_val_loss(options.out));
  EXPECT_EQ(whole.accuracy, metrics_of(options.out).back()["accuracy"].get<double>());
  EXPECT_TRUE(whole.line.starts_with("accuracy=")) << whole.line;
  SavedEvaluation part = alone({.run = options.out, .batches = 1});
  EXPECT_NE(part.val_loss, whole.val_loss);
  EXPECT_TRUE(part.line.ends_with(" eval_batches=1")) << part.line;
  fs::create_directory(folder / "other");
  test::write_tiny_digits(folder / "other", 1, 3);
  SavedEvaluation other = alone({.run = options.out, .data = folder / "other"});
  EXPECT_NEAR(*other.accuracy * 3, std::round(*other.accuracy * 3), 1e-9);
}

TEST(EvaluateSaved, TheMlpMakesItsOwnData) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.seed = 4;
  run(1, options);
  EXPECT_EQ(alone({.run = options.out}).val_loss, last_val_loss(options.out));
  EXPECT_NE(refusal({.run = options.out, .data = folder.path()}).find("makes its own data"),
            std::string::npos);
}

TEST(EvaluateSaved, DataThatIsMissingOrDoesNotFitIsOneLine) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 1;
  run(1, options);
  fs::path alone_file = folder / "alone.safetensors", other = folder / "other.txt";
  fs::copy(fs::path(options.out) / "model.safetensors", alone_file);
  EXPECT_NE(refusal({.run = alone_file}).find("name some with --data"), std::string::npos);
  std::ofstream(other) << "banana xylophone";
  std::string message = refusal({.run = options.out, .data = other});
  EXPECT_NE(message.find("'x'"), std::string::npos) << message;
  EXPECT_NE(message.find("other.txt"), std::string::npos) << message;
  std::ofstream(other) << "a";
  EXPECT_NE(refusal({.run = options.out, .data = other}).find("expected two tokens or more"),
            std::string::npos);
  std::ofstream(options.data, std::ios::app) << "banana";
  EXPECT_NE(refusal({.run = options.out}).find("found other data"), std::string::npos);
  fs::remove(options.data);
  EXPECT_NE(refusal({.run = options.out}).find("is not there from this folder"), std::string::npos);
  test::run_group(test::Engine::shm, 2, [&](Group group) {
    std::string words =
        test::message_of([&] { (void)evaluate_saved({.run = options.out}, group); });
    EXPECT_NE(words.find("is not there from this folder"), std::string::npos) << words;
  });
}

}  // namespace
}  // namespace lockstep::train
