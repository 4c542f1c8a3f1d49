// A run that was saved by some ranks under one strategy continues under any other strategy, bitwise
// equal to one process.
#include <lockstep/checkpoint/checkpoint.h>

#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/sharded/deferred.h>

#include "base/format.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/small_training.h"
#include "support/messages.h"
#include "support/python.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
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

class EveryOptimizer : public testing::TestWithParam<std::string> {};

// The strategy and the number of ranks change at each stop, and every strategy is reached.
TEST_P(EveryOptimizer, GoesOnToTheBitsOfOneProcess) {
  TemporaryFolder alone, often;
  go_on(alone.path(), std::nullopt, GetParam(), 1, 1);
  std::size_t strategy = 0;
  go_on(often.path(), test::all_strategies[3], GetParam(), 3, 1);
  for (int ranks : {5, 2, 4, 1, 3, 2, 5, 1}) {
    const Level& level = test::all_strategies[strategy++ % test::all_strategies.size()];
    go_on(often.path(), level, GetParam(), ranks, 1);
    go_on(alone.path(), std::nullopt, GetParam(), 1, 1);
    SCOPED_TRACE(test::name_of(level) + " on " + std::to_string(ranks) + " ranks");
    test::expect_same_checkpoint(*latest_checkpoint(often.path()),
                                 *latest_checkpoint(alone.path()));
    if (HasFailure()) return;
  }
  EXPECT_EQ(list_checkpoints(often.path()).size(), 9u);
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : test::all_optimizers()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizer, testing::ValuesIn(optimizer_names()),
                         [](const auto& info) { return info.param; });

// With or without a stop in the middle, the files equal those of a run that never stopped.
TEST(Checkpoint, FromEveryStrategyToEveryOther) {
  TemporaryFolder straight;
  go_on(straight.path(), std::nullopt, "our_adamw", 1, 4);
  for (const Level& before : test::all_strategies)
    for (const Level& after : test::all_strategies) {
      SCOPED_TRACE(test::name_of(before) + " to " + test::name_of(after));
      TemporaryFolder out;
      go_on(out.path(), before, "our_adamw", 2, 2);
      go_on(out.path(), after, "our_adamw", 3, 2);
      test::expect_same_checkpoint(*latest_checkpoint(out.path()),
                                   *latest_checkpoint(straight.path()));
    }
}

// Uses processes, because ranks that are threads would share one generator.
TEST(Checkpoint, HoldsWhatAProgramCounts) {
  TemporaryFolder out;
  test::run_group(test::BackendKind::shm, 3, [&](Group group) {
    Training training(ShardLevel::full, "adamw", group);
    optim::Scheduler scheduler(*training.optimizer, optim::cosine({.steps = 10}));
    optim::GradScaler scaler;
    for (int i = 0; i < 3; ++i) {
      training.step();
      scheduler.step();
    }
    scaler.load_state({.scale = 1024, .good_steps = 7});
    torch::manual_seed(100 + group.rank());
    const fs::path folder =
        save(out.path(), training.handle, *training.optimizer,
             {.step = 3,
              .epoch = 1,
              .numbers = {{"best", 0.1}, {"worst", std::numeric_limits<double>::infinity()}},
              .progress = {{"place", "line 7"}},
              .config = {{"lr", "0.01"}}},
             {.scheduler = &scheduler, .scaler = &scaler, .description = {{"maker", "me"}}});
    EXPECT_EQ(folder, out / "step-00000003");
    at::Tensor drawn = at::rand({4});
    torch::manual_seed(0);

    Training again(std::nullopt, "adamw", group);
    optim::Scheduler next(*again.optimizer, optim::cosine({.steps = 10}));
    optim::GradScaler other;
    TrainingState state =
        load(folder, again.handle, *again.optimizer, {.scheduler = &next, .scaler = &other});
    EXPECT_EQ(state.step, 3);
    EXPECT_EQ(state.epoch, 1);
    EXPECT_EQ(state.ranks, 3);
    EXPECT_EQ(state.numbers.at("best"), 0.1);
    EXPECT_TRUE(std::isinf(state.numbers.at("worst")));
    EXPECT_EQ(state.progress, (Metadata{{"place", "line 7"}}));
    EXPECT_EQ(state.config, (Metadata{{"lr", "0.01"}}));
    EXPECT_EQ(next.step_number(), 3);
    EXPECT_EQ(next.rates(), scheduler.rates());
    EXPECT_EQ(other.state().scale, 1024);
    EXPECT_EQ(other.state().good_steps, 7);
    EXPECT_TRUE(at::equal(at::rand({4}), drawn));  // each rank's own generator continues
  });
  EXPECT_EQ(names_in(out / "step-00000003"),
            (std::vector<std::string>{"layout.json", "model.safetensors", "optimizer.safetensors",
                                      "random.safetensors"}));
  EXPECT_EQ(read_safetensors(out / "step-00000003/model.safetensors").metadata,
            (Metadata{{"maker", "me"}}));
}

TEST(Checkpoint, GeneratorsOfOtherNumbersOfRanksStayAsTheyAre) {
  TemporaryFolder out;
  go_on(out.path(), std::nullopt, "sgd", 2, 1);
  test::run_group(test::BackendKind::shm, 3, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    torch::manual_seed(5);
    at::Tensor drawn = at::rand({4});
    torch::manual_seed(5);
    EXPECT_EQ(load_latest(out.path(), training.handle, *training.optimizer)->ranks, 2);
    EXPECT_TRUE(at::equal(at::rand({4}), drawn));
  });
}

TEST(Checkpoint, BuffersAreRankZeros) {
  TemporaryFolder out;
  run_as_threads(3, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    training.model->norm->running_mean.fill_(group.rank() + 1);
    training.save(out.path());
  });
  EXPECT_TRUE(read_safetensors(out / "step-00000000/model.safetensors")
                  .tensors.at("norm.running_mean")
                  .eq(1)
                  .all()
                  .item<bool>());
}

// Trains with other gradients and another number of steps on each rank, saves, and compares the
// file with the optimizer's state of rank 0.
void expect_optimizer_of_rank_0(Handle& handle, const fs::path& out,
                                const std::function<void()>& after_step) {
  torch::optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 2; ++step) {
    handle.zero_grad();
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& parameter : handle.parameters())
      loss = loss + parameter.sum() * (1.0 + handle.group().rank());
    loss.backward();
    for (int i = 0; i <= handle.group().rank(); ++i) adamw.step();
    after_step();
  }
  const fs::path folder = save(out, handle, adamw, {.step = 2});
  if (handle.group().rank() > 0) return;
  NamedParameters names;
  for (const Part& part : handle.named_parameters()) names.emplace_back(part.name, part.tensor);
  const NamedTensors expected = optimizer_state(adamw, names);
  const NamedTensors found = read_safetensors(folder / "optimizer.safetensors").tensors;
  EXPECT_EQ(expected.size(), 12u);
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : found) EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::Linear(3, 2));
}

TEST(Checkpoint, OptimizersThatDifferAreRankZeros) {
  TemporaryFolder out;
  run_as_threads(2, [&](Group group) {
    LocalSgd local(two_layers(), group, {.period = 1});
    expect_optimizer_of_rank_0(local, out / "local", [&] { local.step(); });
    DiLoCo diloco(two_layers(), group, {.inner_steps = 2});
    expect_optimizer_of_rank_0(diloco, out / "diloco", [&] { diloco.step(); });
    auto hook = post_local_sgd({.start_step = 0});
    DistributedDataParallel ddp(two_layers(), group, {.hook = hook});
    ModelAverager averager(ddp.parameters(), {{1, group}}, /*warmup_steps=*/0, hook);
    expect_optimizer_of_rank_0(ddp, out / "post_local", [&] { averager.step(); });
  });
}

TEST(Checkpoint, IgnoredTensorsAreEachRanksOwn) {
  for (const Level& level : {Level(), Level(ShardLevel::full)}) {
    TemporaryFolder out;
    run_as_threads(3, [&](Group group) {
      at::NoGradGuard no_grad;
      Training training(level, "sgd", group, {"conv"});
      training.model->conv->bias.fill_(group.rank());
      training.save(out.path());
      training.model->conv->bias.fill_(-1);
      training.load(out.path());
      EXPECT_TRUE(training.model->conv->bias.eq(group.rank()).all().item<bool>());
    });
    auto tensors = read_safetensors(out / "step-00000000/ignored.safetensors").tensors;
    EXPECT_EQ(tensors.size(), 6u);
    EXPECT_TRUE(tensors.contains("rank2.conv.bias"));
    EXPECT_FALSE(
        read_safetensors(out / "step-00000000/model.safetensors").tensors.contains("conv.bias"));
    for (int ranks : {2, 4})
      test::expect_words(refusal(ranks,
                                 [&](Group group) {
                                   Training training(level, "sgd", group, {"conv"});
                                   training.load(out.path());
                                 }),
                         {"conv", ranks == 2 ? "rank2.conv" : "as many ranks as have saved it"});
  }
}

TEST(Checkpoint, AStepIsNeverOverwrittenAndOldOnesGo) {
  TemporaryFolder out;
  fs::create_directories(out / ".step-00000001.0123456789abcdef.partial/left");  // of a killed run
  run_as_threads(2, [&](Group group) {
    Training training(ShardLevel::full, "sgd", group);
    for (int step : {1, 2, 3}) {
      training.steps = step;
      training.save(out.path(), {.keep = 2});
    }
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { (void)training.save(out.path()); }),
        {"step-00000003: exists already"});
    training.steps = 2;
    fs::remove_all(group.is_root() ? out / "step-00000002" : out / "none");
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { (void)training.save(out.path()); }),
        {"step-00000003: is newer than step 2", "move it away"});
    training.steps = -1;
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { (void)training.save(out.path()); }),
        {"expected a step from 0 to", "found -1"});
    training.steps = 4;
    // Nothing could read such a checkpoint, and load() would always find it first.
    test::expect_words(test::message_of<CollectiveFailure>([&] {
                         (void)checkpoint::save(out.path(), training.handle, *training.optimizer,
                                                {.step = 4, .epoch = -1});
                       }),
                       {"expected an epoch from 0 to", "found -1"});
    test::expect_words(
        test::message_of<CollectiveFailure>([&] { (void)training.save(out.path(), {.keep = -1}); }),
        {"expected keep of at least 0 (0 keeps all), found -1"});
    (void)training.save(out.path(), {.keep = 2});
  });
  EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{"step-00000003", "step-00000004"}));
}

TEST(Checkpoint, NothingIsLoadedWhereNothingIs) {
  TemporaryFolder out;
  run_as_threads(2, [&](Group group) {
    Training training(std::nullopt, "sgd", group);
    EXPECT_FALSE(load_latest(out.path(), training.handle, *training.optimizer));
    EXPECT_FALSE(load_latest(out / "nowhere", training.handle, *training.optimizer));
  });
}

// Reads with the package safetensors if it is installed, else by the format's specification.
constexpr const char* python_sums = R"(
import json, sys, torch
def by_hand(path):
    raw = bytearray(open(path, "rb").read())
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    header.pop("__metadata__", None)
    dtypes = {"F32": torch.float32, "I64": torch.int64}
    def read(t):
        return torch.frombuffer(raw, dtype=dtypes[t["dtype"]], offset=begin + t["data_offsets"][0],
                                count=torch.Size(t["shape"]).numel()).view(t["shape"])
    return {name: read(t) for name, t in header.items()}
try:
    from safetensors.torch import load_file
except ImportError:
    load_file = by_hand
for path in sys.argv[1:]:
    for name, tensor in sorted(load_file(path).items()):
        print(name, list(tensor.shape), "%.17g" % tensor.double().sum().item())
)";

TEST(Checkpoint, PythonReadsWhatRanksWrote) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  TemporaryFolder out;
  go_on(out.path(), ShardLevel::full, "adamw", 3, 2);
  std::string expected;
  std::vector<std::string> files;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    files.push_back(out / "step-00000002" / name);
    for (const auto& [tensor_name, tensor] : read_safetensors(files.back()).tensors) {
      std::array<char, 40> sum{};
      std::snprintf(sum.data(), sum.size(), "%.17g", tensor.to(at::kDouble).sum().item<double>());
      expected += formatted("{} [{}] {}\n", tensor_name, listed(tensor.sizes(), ", "), sum.data());
    }
  }
  auto result = test::run_python(python_sums, files);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, expected);
}

TEST(Model, OneFileHasTiedWeightsOnceOrUnderEachName) {
  TemporaryFolder folder;
  for (const Level& level : test::all_strategies)
    run_as_threads(3, [&](Group group) {
      Training training(level, "sgd", group);
      training.step();
      auto whole = training.handle.state_dict();
      save_model(folder / "once", training.handle);
      save_model(folder / "twice", training.handle, {.metadata = {{"a", "b"}}, .aliases = true});
      auto once = read_safetensors(folder / "once"), twice = read_safetensors(folder / "twice");
      EXPECT_EQ(once.tensors.size() + 1, twice.tensors.size());
      EXPECT_EQ(twice.tensors.size(), whole.size());
      EXPECT_EQ(twice.metadata, (Metadata{{"a", "b"}}));
      for (const auto& [name, tensor] : whole)
        EXPECT_TRUE(twice.tensors.at(name).equal(tensor)) << name;
      for (const char* name : {"once", "twice"}) {
        Training other(level, "sgd", group);
        load_model(folder / name, other.handle);
        auto found = other.handle.state_dict();
        for (const auto& [tensor_name, tensor] : whole)
          EXPECT_TRUE(found.at(tensor_name).equal(tensor)) << tensor_name;
      }
      group.barrier().wait();
      if (group.is_root())
        change(folder / "twice", [](NamedTensors& t) { t.at("out.weight").add_(1); });
      group.barrier().wait();
      test::expect_words(test::message_of<CollectiveFailure>(
                             [&] { load_model(folder / "twice", training.handle); }),
                         {"out.weight is tied to in.weight: expected equal values"});
    });
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"once", "twice"}));
}

TEST(Model, TiedWeightsMayHaveANaN) {
  TemporaryFolder folder;
  const fs::path file = folder / "model";
  run_as_threads(2, [&](Group group) {
    Training training(test::all_strategies[0], "sgd", group);
    save_model(file, training.handle, {.aliases = true});
    group.barrier().wait();
    if (group.is_root())
      change(file, [](NamedTensors& t) {
        for (const char* name : {"in.weight", "out.weight"})
          t.at(name).view({-1})[0] = std::numeric_limits<double>::quiet_NaN();
      });
    group.barrier().wait();
    load_model(file, training.handle);
    const auto found = training.handle.state_dict();
    EXPECT_EQ(found.at("in.weight").isnan().sum().item<std::int64_t>(), 1);
  });
}

}  // namespace
}  // namespace lockstep::checkpoint
