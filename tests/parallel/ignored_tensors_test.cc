// Options::ignored: parameters and buffers that the handle must not touch.
#include "base/format.h"
#include "parallel/sharded/support.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <ATen/ops/eye.h>

#include <limits>
#include <optional>

namespace lockstep {
namespace {

using namespace test;

// An expert that differs between ranks, and a buffer that cannot be broadcast.
struct ExpertImpl : torch::nn::Module {
  explicit ExpertImpl(int rank) {
    shared = register_module("shared", torch::nn::Linear(4, 4));
    fill_parameters(*shared, 10 + rank);
    // The size also differs between ranks.
    own = register_module("own", torch::nn::Linear(4, 4 + rank));
    fill_parameters(*own, 20 + rank);
    adjacency = register_buffer("adjacency", (at::eye(4) * (rank + 1)).to_sparse());
    seen = register_buffer("seen", at::full({3}, rank));
  }
  at::Tensor forward(const at::Tensor& x) { return own(torch::tanh(shared(x))).square().mean(); }
  torch::nn::Linear shared{nullptr}, own{nullptr};
  at::Tensor adjacency, seen;
};
TORCH_MODULE(Expert);

// The parameters of each rank after a few steps of SGD in one process, with the average gradient of
// `shared` and each rank's own gradient of `own`.
std::vector<std::vector<at::Tensor>> expected_of(int ranks, int steps) {
  std::vector<Expert> experts;
  for (int rank = 0; rank < ranks; ++rank) {
    experts.emplace_back(rank);
    fill_parameters(*experts.back()->shared, 10);
  }
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      Expert& expert = experts[static_cast<std::size_t>(rank)];
      expert->zero_grad();
      expert->forward(values({3, 4}, step * ranks + rank)).backward();
      of_ranks.push_back(gradients_of(expert->shared->parameters()));
    }
    auto averages = average(of_ranks);
    torch::NoGradGuard no_grad;
    for (Expert& expert : experts) {
      for (std::size_t i = 0; i < averages.size(); ++i)
        expert->shared->parameters()[i].sub_(averages[i], 0.1);
      for (auto& parameter : expert->own->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
  }
  std::vector<std::vector<at::Tensor>> all;
  for (Expert& expert : experts) all.push_back(expert->parameters());
  return all;
}

void train_and_compare(Expert& expert, auto& handle, const Group& group) {
  EXPECT_EQ(handle.parameters().size(), 2U);
  torch::optim::SGD shared(handle.parameters(), 0.1), own(expert->own->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    handle.zero_grad();
    own.zero_grad();
    expert->forward(values({3, 4}, step * group.size() + group.rank())).backward();
    shared.step();
    own.step();
  }
  auto expected = expected_of(group.size(), 3)[static_cast<std::size_t>(group.rank())];
  auto state = handle.state_dict();
  std::size_t i = 0;
  for (const char* name : {"shared.weight", "shared.bias", "own.weight", "own.bias"})
    EXPECT_TRUE(same_bits(state.at(name), expected[i++])) << name;
  EXPECT_TRUE(expert->adjacency.to_dense().equal(at::eye(4) * (group.rank() + 1)));
  EXPECT_TRUE(expert->seen.equal(at::full({3}, 0)));
}

std::vector<std::string> own_ones() { return {"own", "adj*"}; }

TEST(IgnoredTensors, AreNeitherBroadcastNorReduced) {
  for (BackendKind backend : {BackendKind::local, BackendKind::shm})
    for (int ranks : {1, 3, 4})
      run_group(backend, ranks, [](Group group) {
        at::set_num_threads(1);
        Expert expert(group.rank());
        DistributedDataParallel ddp(expert, group, {.ignored = own_ones()});
        train_and_compare(expert, ddp, group);
      });
}

TEST(IgnoredTensors, AreNotSharded) {
  for (ShardLevel level : all_levels)
    for (ShardStorage storage : all_storages)
      for (int ranks : {1, 3})
        run_group(BackendKind::shm, ranks, [&](Group group) {
          at::set_num_threads(1);
          Expert expert(group.rank());
          auto sharded = fully_shard(expert, group,
                                     {.level = level, .storage = storage, .ignored = own_ones()});
          train_and_compare(expert, sharded, group);
          auto state = sharded.state_dict();
          sharded.load_state_dict(state);
        });
}

TEST(IgnoredTensors, AnOverflowInOneOfThemSkipsTheStepOnAllRanks) {
  for (const bool clips : {false, true})
    run_as_threads(3, [&](Group group) {
      Expert expert(group.rank());
      auto sharded = fully_shard(expert, group, {.ignored = own_ones()});
      std::vector<at::Tensor> all = sharded.parameters();
      for (const at::Tensor& parameter : expert->own->parameters()) all.push_back(parameter);
      optim::AdamW adamw(all, torch::optim::AdamWOptions(0.01));
      optim::GradScaler scaler({.initial_scale = 64});
      scaler.scale(expert->forward(values({3, 4}, group.rank()))).backward();
      if (group.rank() == 1)
        expert->own->bias.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      const auto largest = clips ? std::optional(1.0) : std::nullopt;
      EXPECT_FALSE(scaler.step(adamw, {.clip_norm = largest}).stepped);
      scaler.update();
      EXPECT_EQ(scaler.current_scale(), 32);
    });
}

TEST(IgnoredTensors, PatternsThatNameNothingAreErrors) {
  run_as_threads(2, [](Group group) {
    Expert expert(group.rank());
    auto ddp = [&] { DistributedDataParallel handle(expert, group, {.ignored = {"onw"}}); };
    expect_words(message_of<InvalidArgument>(ddp), {"ignored", "'onw'", "'own'"});
    auto sharded = [&] { (void)fully_shard(expert, group, {.ignored = {"own", "seen.x"}}); };
    expect_words(message_of<InvalidArgument>(sharded), {"ignored", "'seen.x'"});
  });
}

TEST(IgnoredTensors, PatternsAreTheSameOnAllRanks) {
  run_as_threads(2, [](Group group) {
    Branches model;
    std::vector<std::string> ignored = {group.is_root() ? "a" : "b"};
    auto ddp = [&] { DistributedDataParallel handle(model, group, {.ignored = ignored}); };
    expect_words(message_of<Mismatch>(ddp), {"option ignored a", "option ignored b"});
    auto sharded = [&] { (void)fully_shard(model, group, {.ignored = ignored}); };
    expect_words(message_of<Mismatch>(sharded), {"option ignored a", "option ignored b"});
  });
}

}  // namespace
}  // namespace lockstep
