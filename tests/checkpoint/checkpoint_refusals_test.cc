// Saves and loads that are refused: all ranks get the same one-line error, and nothing is changed.
#include <lockstep/checkpoint/checkpoint.h>

#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/schedule.h>

#include "checkpoint/small_training.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::change;
using test::go_on;
using test::Level;
using test::names_in;
using test::refusal;
using test::SmallModel;
using test::TemporaryFolder;
using test::Training;

TEST(CheckpointRefusals, WhatWouldBeForgottenIsRefused) {
  TemporaryFolder plain, scheduled;
  go_on(plain.path(), ShardLevel::full, "adamw", 2, 1);
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "adamw", group);
    optim::Scheduler scheduler(*training.optimizer, optim::cosine({.steps = 10}));
    optim::GradScaler scaler;
    save(scheduled.path(), training.handle, *training.optimizer, {.step = 1},
         {.scheduler = &scheduler, .scaler = &scaler});
  });
  auto loading = [](const fs::path& out, bool with_scheduler, bool with_scaler) {
    return refusal(2, [&](Group group) {
      Training training(std::nullopt, "adamw", group);
      optim::Scheduler scheduler(*training.optimizer, optim::cosine({.steps = 10}));
      optim::GradScaler scaler;
      (void)load_latest(out, training.handle, *training.optimizer,
                        {.scheduler = with_scheduler ? &scheduler : nullptr,
                         .scaler = with_scaler ? &scaler : nullptr});
    });
  };
  test::expect_words(loading(scheduled.path(), false, true),
                     {"the checkpoint has the state of a scheduler", "but LoadOptions has none"});
  test::expect_words(loading(scheduled.path(), true, false), {"the state of a scaler"});
  test::expect_words(loading(plain.path(), true, false), {"LoadOptions has a scheduler"});
  test::expect_words(loading(plain.path(), false, true), {"LoadOptions has a scaler"});
}

TEST(CheckpointRefusals, AScheduleThatIsTooShortIsRefusedBeforeAnyChange) {
  TemporaryFolder out;
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "adamw", group);
    optim::Scheduler scheduler(*training.optimizer, optim::one_cycle({.steps = 100}));
    for (int step = 0; step < 20; ++step) scheduler.step();
    training.step();
    save(out.path(), training.handle, *training.optimizer, {.step = 20}, {.scheduler = &scheduler});
  });
  const std::string line = refusal(2, [&](Group group) {
    Training training(std::nullopt, "adamw", group);
    optim::Scheduler scheduler(*training.optimizer, optim::one_cycle({.steps = 10}));
    const std::vector<double> rates = scheduler.rates();
    auto before = training.handle.state_dict();
    for (auto& [name, tensor] : before) tensor = tensor.clone();
    const std::string found = test::message_of<CollectiveFailure>([&] {
      (void)load_latest(out.path(), training.handle, *training.optimizer,
                        {.scheduler = &scheduler});
    });
    const auto after = training.handle.state_dict();
    for (const auto& [name, tensor] : before) EXPECT_TRUE(after.at(name).equal(tensor)) << name;
    EXPECT_TRUE(training.optimizer->state().empty());
    EXPECT_EQ(scheduler.rates(), rates);
    EXPECT_EQ(scheduler.step_number(), 0);
    throw CollectiveFailure(found, 0);
  });
  test::expect_words(line, {"schedule one_cycle: step 20 is after its last step, 10"});
}

TEST(CheckpointRefusals, OptimizersThatCannotBeSavedAreRefusedByName) {
  TemporaryFolder out;
  for (int ranks : {1, 2}) {
    std::string line = refusal(ranks, [&](Group group) {
      Training training(std::nullopt, "sgd", group);
      torch::optim::LBFGS lbfgs(training.handle.parameters(), torch::optim::LBFGSOptions(1));
      save(out.path(), training.handle, lbfgs, {.step = 1});
    });
    test::expect_words(line, {"torch::optim::LBFGS", "Adagrad or SGD"});
    line = refusal(ranks, [&](Group group) {
      Training training(std::nullopt, "sgd", group);
      SmallModel other;
      torch::optim::SGD sgd(other.parameters(), torch::optim::SGDOptions(1));
      save(out.path(), training.handle, sgd, {.step = 1});
    });
    test::expect_words(line, {"with other parameters", "handle.parameters()"});
  }
  EXPECT_TRUE(names_in(out.path()).empty());
}

TEST(CheckpointRefusals, WhatDoesNotFitIsOneLineAndNothingIsChanged) {
  const std::string of_in = "optimizer.in.weight.";
  struct Case {
    std::string file;
    std::function<void(NamedTensors&)> how;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"model.safetensors",
       [](auto& t) { t.at("in.bias") = at::zeros({6}); },
       {"in.bias: expected shape [5], found [6]"}},
      {"model.safetensors",
       [](auto& t) { t.at("in.bias") = at::zeros({5}, at::kDouble); },
       {"in.bias: expected dtype Float, found Double"}},
      {"model.safetensors",
       [](auto& t) { t.erase("norm.running_mean"); },
       {"expected a tensor named norm.running_mean, found none"}},
      {"model.safetensors",
       [](auto& t) { t["\x1b[31m"] = at::zeros(1); },
       {"found a tensor named \\x1b[31m that the model does not have"}},
      {"optimizer.safetensors",
       [&](auto& t) { t.erase(of_in + "exp_avg"); },
       {"the checkpoint has no " + of_in + "exp_avg"}},
      {"optimizer.safetensors",
       [&](auto& t) {
         t.at(of_in + "exp_avg") = at::zeros({12, 5});
       },
       {of_in + "exp_avg: expected shape [5, 12], found [12, 5]"}},
      {"optimizer.safetensors",
       [&](auto& t) { t.at(of_in + "step") = torch::tensor(-1L); },
       {of_in + "step: expected at least 0, found -1"}},
      {"optimizer.safetensors",
       [&](auto& t) {
         t[of_in + "sum"] = at::zeros({5, 12});
       },
       {of_in + "sum, which this optimizer does not keep"}},
      {"optimizer.safetensors",
       [&](auto& t) { t["optimizer.no.step"] = torch::tensor(1L); },
       {"'optimizer.no.step', which belongs to no parameter"}},
      {"random.safetensors",
       [&](auto& t) { t.at("rank1") = at::zeros({9}, at::kByte); },
       {"rank1: expected a generator's state of ", " bytes, found 9"}},
      {"random.safetensors",
       [](auto& t) { t.at("rank1").zero_(); },
       {"rank1: not the state of a random generator"}}};
  for (const Case& one : cases) {
    TemporaryFolder out;
    go_on(out.path(), ShardLevel::gradients, "adamw", 2, 1);
    change(out / "step-00000001" / one.file, one.how);
    for (const Level& level : {Level(), Level(ShardLevel::full)}) {
      std::string line = refusal(3, [&](Group group) {
        Training training(level, "adamw", group);
        training.step();
        auto before = training.handle.state_dict();
        for (auto& [name, tensor] : before) tensor = tensor.clone();
        std::string found = test::message_of<CollectiveFailure>(
            [&] { (void)load_latest(out.path(), training.handle, *training.optimizer); });
        auto after = training.handle.state_dict();
        for (const auto& [name, tensor] : before) EXPECT_TRUE(after.at(name).equal(tensor)) << name;
        EXPECT_FALSE(training.optimizer->state().empty());
        throw CollectiveFailure(found, 0);
      });
      test::expect_words(line, one.words);
      test::expect_words(line, {(out / "step-00000001" / one.file).string()});
    }
  }
}

TEST(CheckpointRefusals, OverwrittenBytesAreFoundByTheRanksTogether) {
  for (int ranks : {1, 2, 5})
    for (const char* name : {"model.safetensors", "optimizer.safetensors"})
      for (std::int64_t from_end : {3, 300}) {
        TemporaryFolder out;
        go_on(out.path(), std::nullopt, "our_adamw", 2, 1);
        const fs::path file = out / "step-00000001" / name;
        verify(out / "step-00000001");
        std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
        bytes.seekp(-from_end, std::ios::end).put('\x55').put('\xaa');
        bytes.close();
        EXPECT_THROW(verify(out / "step-00000001"), BadInput);
        std::string line = refusal(ranks, [&](Group group) {
          Training training(ShardLevel::full, "our_adamw", group);
          training.load(out.path());
        });
        test::expect_words(line, {file.string(), "is damaged: expected"});
      }
}

TEST(CheckpointRefusals, TextsThatAreNoUtf8AreOneLine) {
  TemporaryFolder out;
  auto saving = [&](const TrainingState& state) {
    return refusal(2, [&](Group group) {
      Training training(std::nullopt, "sgd", group);
      save(out.path(), training.handle, *training.optimizer, state);
    });
  };
  EXPECT_EQ(saving({.progress = {{"place", "\xff"}}}),
            "checkpoint: progress.place must be UTF-8, found '\\xff'");
  EXPECT_EQ(saving({.config = {{"\xff", "x"}}}),
            "checkpoint: a name in config must be UTF-8, found '\\xff'");
  EXPECT_TRUE(names_in(out.path()).empty());
}

}  // namespace
}  // namespace lockstep::checkpoint
