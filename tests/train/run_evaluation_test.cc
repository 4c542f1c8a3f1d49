// Evaluations on some batches, the best model, and samples during a run.
#include <lockstep/train/trainer.h>

#include <lockstep/data/tokenizer.h>

#include "base/format.h"
#include "base/text.h"
#include "train/runs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

// Makes a run whose validation images exceed one evaluation batch.
RunSetup many_digits(const TemporaryFolder& folder) {
  RunSetup options = tiny_mnist(folder);
  test::write_tiny_digits(folder.path(), 50, 600);
  options.steps = 4;
  options.epochs = 0;
  options.eval_every = 2;
  options.eval_batches = 1;
  return options;
}

// Likewise for a text.
RunSetup long_text(const TemporaryFolder& folder) {
  RunSetup options = tiny_gpt(folder);
  std::ofstream text(options.data, std::ios::app);
  for (int i = 0; i < 4000; ++i) text << (i % 3 == 0 ? "banana cab\n" : "abacus ban ");
  options.eval_batches = 1;
  options.clip = 0;  // each strategy sums norms in another order
  return options;
}

TEST(RunEvaluation, SomeBatchesAreMeasuredDuringTrainingAndAllAtTheEnd) {
  TemporaryFolder folder;
  RunSetup options = many_digits(folder);
  run(1, options);
  auto rows = metrics_of(options.out);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].value("eval_batches", 0), 1);
  EXPECT_TRUE(rows[1].contains("accuracy"));
  EXPECT_FALSE(rows[3].contains("eval_batches"));
  RunSetup whole = options;
  whole.out += "-whole";
  whole.eval_batches = 0;
  run(1, whole);
  auto expected = metrics_of(whole.out);
  EXPECT_FALSE(expected[1].contains("eval_batches"));
  EXPECT_NE(rows[1]["val_loss"], expected[1]["val_loss"]);
  EXPECT_EQ(rows[3]["val_loss"], expected[3]["val_loss"]);
  EXPECT_EQ(distance(options.out, whole.out), 0);
}

TEST(RunEvaluation, ThoseBatchesAreTheSameOnAnyNumberOfRanks) {
  TemporaryFolder folder;
  RunSetup options = many_digits(folder);
  options.lr = 0;  // the models stay equal, so that only the order of sums differs
  std::string out = options.out;
  run(1, options);
  double expected = metrics_of(out)[1]["val_loss"];
  double whole = last_val_loss(out);
  EXPECT_GT(std::abs(expected - whole), 1e-5);
  for (int ranks : {2, 3}) {
    options.out = out + std::to_string(ranks);
    run(ranks, options);
    EXPECT_NEAR(metrics_of(options.out)[1]["val_loss"].get<double>(), expected, 1e-6) << ranks;
    EXPECT_NEAR(last_val_loss(options.out), whole, 1e-6) << ranks;
  }
}

TEST(RunEvaluation, APatientRunMeasuresEverythingWhenItStops) {
  TemporaryFolder folder;
  RunSetup options = many_digits(folder);
  options.lr = 0;
  options.steps = 100;
  options.patience = 1;
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    Report report = train(options, group);
    EXPECT_EQ(report.step, 4);
    EXPECT_TRUE(report.stopped_early);
    EXPECT_NE(report.last_line.find(" best_step=2 "), std::string::npos) << report.last_line;
  });
  auto rows = metrics_of(options.out);
  EXPECT_EQ(rows.back()["step"], 4);
  EXPECT_FALSE(rows.back().contains("eval_batches"));
}

checkpoint::Metadata description_of(const fs::path& file) {
  return checkpoint::read_safetensors(file).metadata;
}

// After step 4, the loss does not improve any more.
TEST(RunEvaluation, TheBestModelIsKeptBesideTheLast) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 4;
  run(1, options);
  fs::path best = fs::path(options.out) / "best.safetensors";
  auto first = checkpoint::read_safetensors(best);
  EXPECT_EQ(first.metadata.at("step"), "4");
  EXPECT_EQ(parse_number(first.metadata.at("val_loss")), last_val_loss(options.out));
  options.resume = true;
  options.steps = 12;
  options.lr = 30;
  options.keep_checkpoints = 1;
  Report report = train(options, Group());
  EXPECT_GT(*report.val_loss, *parse_number(first.metadata.at("val_loss")));
  std::string name = formatted(" best_val_loss={:#.4g} best_step=4 best={}",
                               *parse_number(first.metadata.at("val_loss")), best.string());
  EXPECT_TRUE(report.last_line.ends_with(name)) << report.last_line;
  EXPECT_EQ(description_of(best), first.metadata);
  EXPECT_FALSE(fs::exists(fs::path(options.out) / "step-00000004"));
  EXPECT_EQ(description_of(fs::path(options.out) / "model.safetensors").at("step"), "12");
}

TEST(RunEvaluation, ABestModelThatIsGoneOrBrokenIsMadeAnew) {
  TemporaryFolder folder;
  RunSetup options = tiny_mlp(folder);
  options.eval_every = 4;
  run(1, options);
  fs::path best = fs::path(options.out) / "best.safetensors";
  options.resume = true;
  options.steps = 12;
  std::ofstream(best) << "no tensors";
  run(1, options);
  EXPECT_EQ(description_of(best).at("step"), "12");
  fs::remove(best);
  options.steps = 16;
  run(1, options);
  EXPECT_EQ(description_of(best).at("step"), "16");
}

// Losses on other data are not compared, neither for the best model nor for patience.
TEST(RunEvaluation, OtherDataBeginsTheComparisonAnew) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  options.steps = 4;
  options.patience = 1;
  run(1, options);
  fs::path best = fs::path(options.out) / "best.safetensors";
  EXPECT_EQ(description_of(best).at("step"), "4");
  std::ofstream text(options.data);
  for (int i = 0; i < 1500; ++i) text << "abcsnu \n"[(i * i + i / 7) % 8];  // harder to predict
  text.close();
  options.resume = options.allow_other_data = true;
  options.steps = 8;
  options.lr = 1e-9;
  options.min_lr = 0;
  test::run_group(test::BackendKind::shm, 2, [&](Group group) {
    Report report = train(options, group);
    EXPECT_FALSE(report.stopped_early);
    EXPECT_NE(report.last_line.find(" best_step=8 "), std::string::npos) << report.last_line;
  });
  EXPECT_EQ(description_of(best).at("step"), "8");
}

class Samples : public testing::TestWithParam<int> {};

// Partial evaluations, the best model and samples together, under both strategies.
TEST_P(Samples, AreThoseOfARunThatWasNeverStoppedNorSharded) {
  TemporaryFolder folder;
  RunSetup options = long_text(folder);
  options.dropout = 0.2;
  options.sample_every = 3;
  options.sample = 12;
  run(GetParam(), options);
  auto rows = metrics_of(options.out);
  ASSERT_EQ(rows.size(), 8u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].contains("sample"), i == 2 || i == 5) << i;
    if (rows[i].contains("sample"))
      EXPECT_EQ(data::Vocabulary::characters("abcnsu \n")
                    .encode(rows[i]["sample"].get<std::string>())
                    .size(0),
                13);  // plus the first character of the text
  }
  EXPECT_EQ(rows[3].value("eval_batches", 0), 1);
  RunSetup unseen = options;
  unseen.out += "-unseen";
  unseen.sample_every = unseen.sample = unseen.eval_every = 0;
  run(GetParam(), unseen);
  EXPECT_EQ(distance(options.out, unseen.out), 0);  // evaluating changes nothing
  RunSetup sharded = options;
  sharded.shard = ShardKind::full;
  sharded.out += "-full";
  run(GetParam(), sharded);
  for (RunSetup again : {cut_at(options, 4), sharded, cut_at(sharded, 4)}) {
    if (again.resume) run(GetParam(), again);
    expect_same_rows(options, again);
    auto found = metrics_of(again.out);
    for (std::size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(rows[i].value("sample", ""), found[i].value("sample", "")) << again.out;
    EXPECT_EQ(distance(options.out, again.out), 0);
    auto best = checkpoint::read_safetensors(fs::path(options.out) / "best.safetensors");
    auto other = checkpoint::read_safetensors(fs::path(again.out) / "best.safetensors");
    EXPECT_EQ(best.metadata, other.metadata) << again.out;
    for (const auto& [name, tensor] : best.tensors)
      EXPECT_TRUE(tensor.equal(other.tensors.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Samples, testing::Values(1, 3));

TEST(RunEvaluation, ASampleOfBytesIsText) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  std::ofstream(options.data, std::ios::app) << "\xff\xfe";
  options.vocabulary = "bytes";
  options.steps = 1;
  options.sample_every = 1;
  run(1, options);
  std::string sample = metrics_of(options.out).at(0)["sample"];
  (void)data::Vocabulary::characters(sample);  // throws unless it is UTF-8
  // An untrained model generates invalid UTF-8.
  EXPECT_NE(sample.find("\xef\xbf\xbd"), std::string::npos);
}

TEST(RunEvaluation, TokensAreCountedWhereThereAreSome) {
  TemporaryFolder folder;
  RunSetup options = tiny_gpt(folder);
  run(1, options);
  for (const auto& row : metrics_of(options.out))
    EXPECT_EQ(row["tokens_per_second"], row["samples_per_second"].get<double>() * 8);
  options = tiny_mlp(folder);
  options.out += "-mlp";
  run(1, options);
  EXPECT_FALSE(metrics_of(options.out).at(0).contains("tokens_per_second"));
}

}  // namespace
}  // namespace lockstep::train
