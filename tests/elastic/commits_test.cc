// The committed state is whole or absent, with any number of ranks, and is removed at the end.
#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/elastic/elastic.h>
#include <lockstep/models/mlp.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "elastic/commit_files.h"
#include "elastic/copies_or_shards.h"
#include "elastic/small_agent.h"
#include "support/denied_calls.h"
#include "support/messages.h"
#include "support/processes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/data/example.h>
#include <torch/utils.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/syscall.h>

using namespace lockstep;
using namespace std::chrono_literals;
using test::contains;
using test::message_of;
using test::SmallAgent;

namespace {

namespace fs = std::filesystem;

// An old kernel or a container may refuse to reserve space.
TEST(CommitControl, SpaceThatCannotBeReservedIsFilled) {
  if (!test::can_deny_calls()) GTEST_SKIP() << test::no_filters;
  for (const auto& call :
       test::denied_calls({{"fallocate", SYS_fallocate, 0}}, {ENOSYS, EPERM, EINVAL, EOPNOTSUPP})) {
    SCOPED_TRACE(call.text());
    const test::TemporaryFolder folder;
    test::expect_ranks(1, [&](int) {
      ASSERT_TRUE(test::deny(call));
      CommitControl control = CommitControl::make(folder.path(), 3);
      control.mark(0, 2, 1);
      EXPECT_EQ(control.ranks(), 3);
    });
  }
}

TEST(CommitControl, ABufferIsWholeWhenAllRanksHaveMarkedItWithOneNumber) {
  const test::TemporaryFolder folder;
  const fs::path generation = folder / generation_name(3, 0);
  fs::create_directory(generation);
  CommitControl control = CommitControl::make(generation, 3);
  EXPECT_EQ(control.ranks(), 3);
  EXPECT_FALSE(newest_commit(folder.path()));
  for (int rank = 0; rank < 3; ++rank) control.mark(0, rank, 1);
  EXPECT_EQ(newest_commit(folder.path())->buffer, 0);
  control.mark(1, 0, 2);
  control.mark(1, 2, 2);
  EXPECT_EQ(newest_commit(folder.path())->buffer, 0);
  control.mark(1, 1, 2);
  EXPECT_EQ(newest_commit(folder.path())->buffer, 1);
  control.unmark(0, 2);
  EXPECT_EQ(newest_commit(folder.path())->buffer, 1);
  control.unmark(1, 0);
  EXPECT_FALSE(newest_commit(folder.path()));
}

TEST(CommitControl, AnOlderRoundCountsUntilANewerOneHasAWholeCommit) {
  const test::TemporaryFolder folder;
  for (const std::int64_t round : {9, 10}) fs::create_directory(folder / generation_name(round, 0));
  CommitControl old = CommitControl::make(folder / generation_name(9, 0), 1);
  CommitControl young = CommitControl::make(folder / generation_name(10, 0), 2);
  old.mark(1, 0, 7);
  young.mark(0, 0, 1);
  auto found = newest_commit(folder.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->generation, folder / generation_name(9, 0));
  young.mark(0, 1, 1);
  found = newest_commit(folder.path());
  EXPECT_EQ(found->generation, folder / generation_name(10, 0));
  remove_but(folder.path(), found);
  EXPECT_FALSE(fs::exists(folder / generation_name(9, 0)));
}

// Returns the number of bytes below a folder.
std::uintmax_t bytes_below(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::error_code gone;
  for (const auto& entry : fs::recursive_directory_iterator(folder, gone))
    if (entry.is_regular_file(gone)) bytes += entry.file_size(gone);
  return bytes;
}

// Set by the parent process before a test.
struct Training {
  std::int64_t steps = 30;
  bool is_sharded = false;
  bool ends = true;  // otherwise it runs until the test ends it
};

models::Mlp made_model() {
  torch::manual_seed(1);
  return models::Mlp(models::MlpOptions{.sizes = {6, 70, 3}});
}

at::Tensor loss_of(models::Mlp& model, std::int64_t step) {
  const at::Tensor input = at::full({4, 6}, 0.01 * static_cast<double>(step + 1));
  return at::mse_loss(model->forward(input), at::ones({4, 3}));
}

struct Values {
  std::vector<float> parameters;
  double learning_rate = 0;
  double own = 0;
};

// All ranks train on the same rows, so that the mean is bitwise equal for 1, 2 and 4 ranks.
void train_steps(ElasticState& state, const Training& how, Values& values) {
  models::Mlp model = made_model();
  Handle handle = test::copies_or_shards(*model, state.group(), how.is_sharded);
  optim::AdamW adamw(handle.parameters(), torch::optim::AdamWOptions(0.01));
  optim::Scheduler scheduler(adamw, optim::cosine({.steps = 100}));
  at::Tensor own = at::zeros({5}, at::kDouble);
  state.attach(handle, adamw, {.scheduler = &scheduler, .tensors = {{"own", own}}});
  EXPECT_EQ(own[4].item<double>(), static_cast<double>(state.step()));
  EXPECT_EQ(state.step() == 0 ? 0 : state.numbers().at("step"), static_cast<double>(state.step()));
  while (!how.ends || state.step() < how.steps) {
    handle.zero_grad();
    loss_of(model, state.step()).backward();
    adamw.step();
    scheduler.step();
    own += 1;
    state.numbers()["step"] = static_cast<double>(state.step() + 1);
    state.commit();
  }
  for (const auto& [name, tensor] : handle.state_dict()) {
    const at::Tensor flat = tensor.detach().reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i)
      values.parameters.push_back(flat[i].item<float>());
  }
  values.own = own[0].item<double>();
}

void train(const Training& how, Values& values) {
  ElasticState state;
  (void)elastic(state, [&](ElasticState& inner) {
    values = {};
    train_steps(inner, how, values);
  });
}

void wait_for_commits(SmallAgent& agent, std::uintmax_t least = 1) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (bytes_below(agent.commits()) < least && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(2ms);
}

class Committed : public testing::TestWithParam<bool> {};

TEST_P(Committed, ATrainingThatIsKilledAndResizedEndsAsAnUndisturbedOne) {
  const Training how{.steps = 800, .is_sharded = GetParam(), .ends = true};
  Values undisturbed;
  {
    Training alone = how;
    alone.is_sharded = false;
    train(alone, undisturbed);
  }
  SmallAgent agent([&] {
    Values values;
    train(how, values);
    if (values.own == 0) return 0;  // started when the others had finished
    EXPECT_EQ(values.own, static_cast<double>(how.steps));
    EXPECT_EQ(values.parameters, undisturbed.parameters);
    return 0;
  });
  agent.begin_round(4);
  wait_for_commits(agent);
  agent.kill(2);
  agent.begin_round(2);
  std::this_thread::sleep_for(100ms);
  agent.begin_round(4, "nodes join");
  std::this_thread::sleep_for(100ms);
  agent.kill(0);
  agent.kill(1);
  agent.begin_round(1);
  for (int code : agent.wait()) EXPECT_EQ(code, 0);
  EXPECT_EQ(bytes_below(agent.commits()), 0) << "something stays";
}

INSTANTIATE_TEST_SUITE_P(Strategies, Committed, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "fully_shard" : "ddp");
});

// The commits of a training that ended with an error remain until the agent ends.
TEST(Commits, OfAnEarlierTrainingOfTheProgramAreNotTakenUp) {
  SmallAgent agent([] {
    ElasticState state;
    Values values;
    EXPECT_THROW((void)elastic(state,
                               [&](ElasticState& inner) {
                                 train_steps(inner, {.steps = 5}, values);
                                 throw std::runtime_error("an error of the program");
                               }),
                 std::runtime_error);
    EXPECT_TRUE(elastic(state, [&](ElasticState& inner) {
      EXPECT_EQ(inner.round(), 0);
      train_steps(inner, {.steps = 3}, values);
    }));
    EXPECT_EQ(values.own, 3) << "steps from the beginning";
    return 0;
  });
  agent.begin_round(1);
  EXPECT_EQ(agent.wait(), (std::vector<int>{0}));
}

// Each commit belongs to one step: all of its tensors have values of that step.
TEST(Commits, AKilledRankNeverLeavesHalfAStep) {
  constexpr int kills = 12;
  SmallAgent agent([] {
    ElasticState state;
    (void)elastic(state, [](ElasticState& inner) {
      models::Mlp model = made_model();
      DistributedDataParallel ddp(model, inner.group());
      optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
      std::map<std::string, at::Tensor> own;
      for (int i = 0; i < 20; ++i) own["own" + std::to_string(i)] = at::zeros({5000});
      inner.attach(ddp, adamw, {.tensors = own});
      at::NoGradGuard no_gradients;
      if (inner.step() > 0)
        for (const at::Tensor& parameter : model->parameters())
          EXPECT_TRUE(parameter.eq(static_cast<double>(inner.step())).all().item<bool>());
      for (const auto& [name, tensor] : own)
        EXPECT_TRUE(tensor.eq(static_cast<double>(inner.step())).all().item<bool>()) << name;
      while (inner.round() < kills || inner.step() < 1) {
        for (at::Tensor parameter : model->parameters())
          parameter.fill_(static_cast<double>(inner.step() + 1));
        for (const auto& [name, tensor] : own) tensor.fill_(static_cast<double>(inner.step() + 1));
        inner.commit();
      }
    });
    return 0;
  });
  agent.begin_round(3);
  std::mt19937 random(4);
  for (int kill = 0; kill < kills; ++kill) {
    wait_for_commits(agent);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    agent.kill(static_cast<int>(random() % 3));
    if (kill % 4 == 3) agent.kill(static_cast<int>(random() % 3));
    agent.begin_round(3);
  }
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0, 0}));
}

TEST(Commits, TakeTwoCopiesOfTheStateAtMost) {
  SmallAgent agent([] {
    ElasticState state;
    (void)elastic(state, [](ElasticState& inner) {
      models::Mlp model = made_model();
      DistributedDataParallel ddp(model, inner.group());
      optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
      inner.attach(ddp, adamw, {.tensors = {{"own", at::zeros({1 << 20})}}});
      while (inner.round() < 5) inner.commit();
    });
    return 0;
  });
  constexpr std::uintmax_t copy = 4 << 20, rest = 1 << 19;
  agent.begin_round(2);
  for (int round = 0; round < 5; ++round) {
    wait_for_commits(agent, 2 * copy);
    for (int look = 0; look < 20; ++look) {
      EXPECT_LE(bytes_below(agent.commits()), 2 * copy + rest);
      std::this_thread::sleep_for(1ms);
    }
    agent.kill(round % 2);
    agent.begin_round(2);
  }
  EXPECT_EQ(agent.wait(), (std::vector<int>{0, 0}));
}

// A dataset in which sample i has value i.
struct Counted {
  [[nodiscard]] std::size_t size() const { return 21; }
  [[nodiscard]] torch::data::Example<> get(std::size_t index) const {
    return {at::full({}, static_cast<double>(index), at::kDouble), at::zeros({})};
  }
};

// Returns a number that identifies the samples and their order over `epochs` epochs of a loader.
double seen_by(ElasticState& state, std::int64_t epochs) {
  models::Mlp model = made_model();
  DistributedDataParallel ddp(model, state.group());
  optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
  at::Tensor seen = at::zeros({}, at::kDouble);
  state.attach(ddp, adamw, {.tensors = {{"seen", seen}}});
  auto loader = data::loader(Counted(), {.batch_size = 2, .seed = 3});
  state.attach_loader(loader);
  for (std::int64_t epoch = loader.state().epoch; epoch < epochs; ++epoch)
    for (const auto& batch : loader.epoch(epoch)) {
      seen.mul_(31).add_(batch.data.sum()).remainder_(1'000'003);
      state.commit();
    }
  return seen.item<double>();
}

TEST(Commits, ALoaderGoesOnBehindTheBatchesThatWereCommitted) {
  constexpr std::int64_t epochs = 40;
  double undisturbed = 0;
  ElasticState alone;
  (void)elastic(alone, [&](ElasticState& inner) { undisturbed = seen_by(inner, epochs); });
  SmallAgent agent([&] {
    ElasticState state;
    (void)elastic(state,
                  [&](ElasticState& inner) { EXPECT_EQ(seen_by(inner, epochs), undisturbed); });
    return 0;
  });
  agent.begin_round(1);
  for (int round = 0; round < 3; ++round) {
    wait_for_commits(agent);
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * round));
    agent.kill(0);
    agent.begin_round(1);
  }
  EXPECT_EQ(agent.wait(), (std::vector<int>{0}));
}

TEST(Elastic, ALoaderGoesOnBehindTheBatchesOfTheCheckpoint) {
  const test::TemporaryFolder folder;
  std::vector<double> seen;
  for (const bool saves : {false, true, true}) {
    ElasticState state(saves ? ElasticOptions{.out = folder.path(), .save_every = 4}
                             : ElasticOptions{});
    const std::int64_t epochs = seen.size() == 1 ? 1 : 3;
    (void)elastic(state, [&](ElasticState& inner) { seen.push_back(seen_by(inner, epochs)); });
  }
  EXPECT_NE(seen[1], seen[0]);
  EXPECT_EQ(seen[2], seen[0]) << "the checkpoint was of the 8th of 11 batches";
}

TEST(Commits, AStateOfAnotherModelIsRefusedInOneLine) {
  SmallAgent agent([] {
    ElasticState state;
    try {
      (void)elastic(state, [](ElasticState& inner) {
        models::Mlp model(models::MlpOptions{.sizes = {6, inner.round() == 0 ? 7 : 8, 3}});
        DistributedDataParallel ddp(model, inner.group());
        optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
        inner.attach(ddp, adamw);
        for (;;) inner.commit();
      });
    } catch (const CollectiveFailure& failure) {
      return contains(failure.what(), "expected shape [8, 6], found [7, 6]") ? 7 : 8;
    }
    return 9;
  });
  agent.begin_round(2);
  wait_for_commits(agent, 1000);
  std::this_thread::sleep_for(50ms);
  agent.kill(1);
  agent.begin_round(2);
  EXPECT_EQ(agent.wait(), (std::vector<int>{7, 7}));
  EXPECT_TRUE(
      contains(agent.store().try_get("lockstep-round/1/final").value_or(""), "expected shape"));
}

TEST(Elastic, WithoutAnAgentItTrainsOnceAndGoesOnFromItsCheckpoint) {
  const test::TemporaryFolder folder;
  std::vector<std::int64_t> begun;
  for (const std::int64_t steps : {5, 9}) {
    ElasticState state({.out = folder.path(), .save_every = 2, .keep = 1});
    EXPECT_TRUE(elastic(state, [&](ElasticState& inner) {
      models::Mlp model = made_model();
      DistributedDataParallel ddp(model, inner.group());
      optim::AdamW adamw(ddp.parameters(), torch::optim::AdamWOptions(0.01));
      at::Tensor own = at::zeros({3});
      inner.attach(ddp, adamw, {.tensors = {{"own", own}}});
      begun.push_back(inner.step());
      EXPECT_EQ(own[0].item<float>(), static_cast<float>(inner.step()));
      while (inner.step() < steps) {
        own += 1;
        inner.commit();
      }
      EXPECT_GT(inner.goodput(), 0);
      EXPECT_LE(inner.goodput(), 1);
    }));
  }
  EXPECT_EQ(begun, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(std::filesystem::exists(folder / "step-00000008/own.safetensors"));
}

TEST(Elastic, MisuseIsInvalidArgument) {
  EXPECT_TRUE(contains(message_of<InvalidArgument>([] { ElasticState state({.save_every = 3}); }),
                       "save_every 3 needs `out`"));
  ElasticState state;
  EXPECT_FALSE(message_of<InvalidArgument>([&] { (void)state.group(); }).empty());
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] {
                         (void)elastic(state, [](ElasticState& inner) { inner.commit(); });
                       }),
                       "call attach() first"));
}

}  // namespace
