// A model that does not fit on any single rank is trained, saved, and continued on another number
// of ranks.
#include <lockstep/checkpoint/checkpoint.h>

#include <lockstep/comm/local.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "base/format.h"
#include "parallel/sharded/memory_limit.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/allocations.h"
#include "support/torch/ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr std::int64_t width = 512;
constexpr std::int64_t layer_size = width * width * 4;  // bytes

torch::nn::Sequential stack_of(int layers) {
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  return model;
}

struct StackTraining {
  StackTraining(int layers, const Group& group, bool is_deferred)
      : model(is_deferred ? deferred([&] { return stack_of(layers); }) : stack_of(layers)),
        handle(fully_shard(model, group, {.units = {"*"}})),
        sgd(handle.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {}

  double step() {
    handle.zero_grad();
    at::Tensor input = at::arange(2 * width).mul(0.01).sin().view({2, width});
    at::Tensor loss = at::zeros({});
    for (const auto& layer : model->children())
      loss = loss + layer->as<torch::nn::LinearImpl>()->forward(input).square().mean();
    loss.backward();
    sgd.step();
    handle.zero_grad();
    return loss.item<double>();
  }

  torch::nn::Sequential model;
  ShardedModule handle;
  torch::optim::SGD sgd;
};

// Saving and loading need some megabytes of additional memory, however large the model is.
TEST(CheckpointMemory, IsAFewMegabytesWhateverTheModel) {
  constexpr std::int64_t most = std::int64_t{14} << 20;
  constexpr int layers = 48;
  TemporaryFolder out;
  static_assert(layers * layer_size > 3 * most);
  for (int ranks : {3, 2})
    run_as_threads(ranks, [&](Group group) {
      torch::manual_seed(1);
      StackTraining training(layers, group, /*is_deferred=*/true);
      training.step();
      training.handle.free_buffers();
      test::Allocations counter;
      if (ranks == 2) {
        (void)load_latest(out.path(), training.handle, training.sgd);
        // load_latest() frees the old state, which was allocated before the counter existed, and
        // then allocates the new one.
        EXPECT_LT(counter.peak(), layers * layer_size / ranks + most);
        counter.reset_peak();
      }
      std::int64_t before = counter.held();
      save(out.path(), training.handle, training.sgd, {.step = 5 - ranks});
      EXPECT_LT(counter.peak() - before, most);
    });
}

struct RankReport {
  std::vector<test::RankResult> results;
  std::string loss;  // of rank 0
  [[nodiscard]] bool all_ok() const {
    return std::ranges::all_of(results, [](const auto& one) { return one.ok(); });
  }
};

// Makes one more step in separate processes, each under its own memory limit if there is one.
RankReport train_on(const fs::path& out, int layers, int ranks, bool is_deferred,
                    std::int64_t limit_bytes) {
  TemporaryFolder notes;
  std::vector<std::unique_ptr<test::MemoryLimit>> limits;
  for (int rank = 0; rank < ranks && limit_bytes > 0; ++rank)
    limits.push_back(std::make_unique<test::MemoryLimit>(limit_bytes, rank));
  test::RankRendezvous place(test::BackendKind::shm, ranks, std::chrono::seconds(25));
  test::RankProcesses processes(ranks, [&](int rank) {
    if (!limits.empty()) limits[static_cast<std::size_t>(rank)]->join();
    at::set_num_threads(1);
    ::mallopt(M_MMAP_THRESHOLD, 1 << 17);  // returns freed memory to the system
    ::mallopt(M_TRIM_THRESHOLD, 1 << 17);
    Group group = place.join(rank);
    torch::manual_seed(1);
    StackTraining training(layers, group, is_deferred);
    std::int64_t step = 0;
    if (auto saved = load_latest(out, training.handle, training.sgd)) step = saved->step;
    double loss = training.step();
    save(out, training.handle, training.sgd, {.step = step + 1});
    if (rank == 0) std::ofstream(notes / "loss") << formatted("{}", loss);
  });
  RankReport report{.results = processes.wait(std::chrono::seconds(40)), .loss = {}};
  std::ifstream(notes / "loss") >> report.loss;
  return report;
}

TEST(CheckpointMemory, AModelThatIsLargerThanEachRanksLimitIsSavedAndGoesOn) {
  constexpr int layers = 96;
  constexpr std::int64_t limit = std::int64_t{92} << 20;
  static_assert(layers * layer_size > limit);
  if (test::under_sanitizer) GTEST_SKIP() << "a sanitizer needs more memory";
  if (!test::MemoryLimit(limit).is_there())
    GTEST_SKIP() << "no control group with a memory limit can be made here";
  TemporaryFolder out, plain;
  RankReport first = train_on(out.path(), layers, 5, true, limit);
  for (const auto& result : first.results) ASSERT_TRUE(result.ok()) << result;
  RankReport second = train_on(out.path(), layers, 4, true, limit);
  for (const auto& result : second.results) ASSERT_TRUE(result.ok()) << result;
  EXPECT_EQ(train_on(plain.path(), layers, 1, false, 0).loss, first.loss);
  EXPECT_EQ(train_on(plain.path(), layers, 1, false, 0).loss, second.loss);
  EXPECT_NE(first.loss, second.loss);
  // A single rank that creates the whole model exceeds the same limit.
  EXPECT_FALSE(train_on(out.path(), layers, 1, false, limit).all_ok());
}

}  // namespace
}  // namespace lockstep::checkpoint
