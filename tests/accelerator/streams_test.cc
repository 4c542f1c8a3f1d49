// Models that compute on two streams of a device, on the simulated accelerator.
#include <lockstep/comm/local.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "accelerator/small_training.h"
#include "comm/backend/accelerator.h"
#include "parallel/sharded/unit_storage.h"
#include "support/accelerator/expectations.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test::accelerator;

// Both branches use `both`, one after the other.
struct Branches : torch::nn::Module {
  Branches() {
    for (auto* layer : {&both, &left, &right, &last}) *layer = torch::nn::Linear(16, 16);
    register_module("both", both);
    register_module("left", left);
    register_module("right", right);
    register_module("last", last);
    test::fill_parameters(*this, 1);
  }

  // Computes the left branch on `side`, if given.
  at::Tensor forward(const at::Tensor& input, const std::optional<c10::Stream>& side) {
    at::Tensor l, r;
    const auto on_side = [&](const auto& action) {
      const c10::OptionalStreamGuard guard(side);
      action();
    };
    std::optional<c10::Stream> main;
    if (side) {
      main = lockstep::current_stream(side->device());
      order(*main, *side);
      input.record_stream(*side);
    }
    on_side([&] { l = both->forward(input); });
    r = both->forward(input);
    on_side([&] { l = left->forward(l.tanh()); });
    r = right->forward(r.tanh());
    if (side) {
      order(*side, *main);
      l.record_stream(*main);
    }
    return last->forward(l + r);
  }

  torch::nn::Linear both{nullptr}, left{nullptr}, right{nullptr}, last{nullptr};
};

// No layer is used on both streams, and the streams meet in the loss.
struct SeparateBranches : torch::nn::Module {
  SeparateBranches() {
    for (auto* layer : {&left, &right}) *layer = torch::nn::Linear(16, 16);
    register_module("left", left);
    register_module("right", right);
    test::fill_parameters(*this, 1);
  }

  at::Tensor forward(const at::Tensor& input, const std::optional<c10::Stream>& side) {
    if (!side) return left->forward(input) + right->forward(input);
    const c10::Stream main = lockstep::current_stream(side->device());
    order(main, *side);
    input.record_stream(*side);
    at::Tensor l;
    {
      const c10::StreamGuard guard(*side);
      l = left->forward(input);
    }
    const at::Tensor r = right->forward(input);
    order(*side, main);
    l.record_stream(main);
    return l + r;
  }

  torch::nn::Linear left{nullptr}, right{nullptr};
};

// All layers have different sizes, and the layers of the two branches alternate.
struct UnequalBranches : torch::nn::Module {
  UnequalBranches() {
    add(left, "left", {16, 64, 8, 48});
    add(right, "right", {16, 40, 24, 48});
    test::fill_parameters(*this, 1);
  }

  at::Tensor forward(const at::Tensor& input, const std::optional<c10::Stream>& side) {
    std::optional<c10::Stream> main;
    if (side) {
      main = lockstep::current_stream(side->device());
      order(*main, *side);
      input.record_stream(*side);
    }
    at::Tensor l = input, r = input;
    for (std::size_t i = 0; i < left.size(); ++i) {
      {
        const c10::OptionalStreamGuard guard(side);
        l = left[i]->forward(l).tanh();
      }
      r = right[i]->forward(r).tanh();
    }
    if (side) {
      order(*side, *main);
      l.record_stream(*main);
    }
    return l + r;
  }

  void add(std::vector<torch::nn::Linear>& branch, const std::string& name,
           const std::vector<std::int64_t>& widths) {
    for (std::size_t i = 1; i < widths.size(); ++i)
      branch.push_back(
          register_module(name + std::to_string(i), torch::nn::Linear(widths[i - 1], widths[i])));
  }

  std::vector<torch::nn::Linear> left, right;
};

// Returns the parameters after some steps.
template <class Model>
Values trained_on_two_streams(const Level& level, const Group& group, c10::Device device,
                              const ShardOptions& shards,
                              const DistributedDataParallelOptions& buckets) {
  auto model = std::make_shared<Model>();
  model->to(device);
  ShardOptions options = shards;
  if (level) options.level = *level;
  Handle handle = level ? fully_shard(model, group, options)
                        : Handle(DistributedDataParallel(model, group, buckets));
  torch::optim::SGD sgd(handle.parameters(), 0.1);
  std::optional<c10::Stream> side;
  if (!device.is_cpu())
    side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  for (int step = 0; step < 4; ++step) {
    handle.zero_grad();
    const auto input = test::values({4, 16}, 10 * step + group.rank()).to(device);
    model->forward(input, side).square().sum().backward();
    sgd.step();
  }
  return on_cpu(handle);
}

class TwoStreams : public AcceleratorTest, public testing::WithParamInterface<Level> {};

// Trains a model on two streams of a device in several schedules, and on the CPU.
template <class Model>
void expect_two_streams_like_one(const Level& level, const ShardOptions& shards,
                                 const DistributedDataParallelOptions& buckets) {
  Values expected;
  run_as_threads(ranks, [&](const Group& group) {
    Values own = trained_on_two_streams<Model>(level, group, c10::kCPU, shards, buckets);
    if (group.is_root()) expected = std::move(own);
  });
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks, [&](const Group& group, c10::Device device) {
      expect_equal(trained_on_two_streams<Model>(level, group, device, shards, buckets), expected);
    });
    expect_no_faults();
  }
}

TEST_P(TwoStreams, TrainLikeOne) {
  expect_two_streams_like_one<Branches>(GetParam(), {.units = {"*"}}, {.bucket_bytes = 2000});
}

TEST_P(TwoStreams, OfSeparateLayersTrainLikeOne) {
  expect_two_streams_like_one<SeparateBranches>(GetParam(), {}, {});
}

// Buffers of one unit are freed to make room for those of another.
TEST_P(TwoStreams, OfUnequalUnitsTrainLikeOne) {
  expect_two_streams_like_one<UnequalBranches>(GetParam(), {.units = {"*"}, .prefetch = 2},
                                               {.bucket_bytes = 2000});
}

class PooledBuffers : public AcceleratorTest {};

// The memory belongs to the stream that took the buffer first; another stream may still use it when
// the pool frees it to make room.
TEST_F(PooledBuffers, AreNotReusedBeforeTheStreamThatGaveThemBackIsDone) {
  run_ranks(1, [](Group group, c10::Device device) {
    sharded::BufferPool pool(group);
    const c10::Stream main = lockstep::current_stream(device), side = new_stream(device);
    at::Tensor buffer = pool.take(3000, at::kFloat, device);
    order(main, side);
    {
      const c10::StreamGuard guard(side);
      buffer.fill_(1);
      pool.give(std::move(buffer));
    }
    const at::Tensor smaller = pool.take(1000, at::kFloat, device);
    EXPECT_EQ(pool.bytes().free, 0);
    smaller.fill_(2);
    EXPECT_EQ(smaller.sum().item<float>(), 2000);
    order(side, main);
  });
}

class TwoStreamsInSmallBuckets : public AcceleratorTest {};

TEST_F(TwoStreamsInSmallBuckets, TrainLikeOne) {
  expect_two_streams_like_one<SeparateBranches>({}, {},
                                                {.bucket_bytes = 600, .first_bucket_bytes = 600});
}

INSTANTIATE_TEST_SUITE_P(OnDevices, TwoStreams, testing::ValuesIn(all_levels), name_of_level);

}  // namespace
}  // namespace lockstep
