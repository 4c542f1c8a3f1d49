// Models that compute on two streams of a device, on the simulated accelerator.
#include <lockstep/comm/local.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "accelerator/small_training.h"
#include "comm/backend/accelerator.h"
#include "support/accelerator/expectations.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
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

// Returns the parameters after some steps.
Values trained_on_two_streams(const Level& level, const Group& group, c10::Device device) {
  auto model = std::make_shared<Branches>();
  model->to(device);
  Handle handle = level ? fully_shard(model, group, {.units = {"*"}, .level = *level})
                        : Handle(DistributedDataParallel(model, group, {.bucket_bytes = 2000}));
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

TEST_P(TwoStreams, TrainLikeOne) {
  Values expected;
  run_as_threads(ranks, [&](const Group& group) {
    Values own = trained_on_two_streams(GetParam(), group, c10::kCPU);
    if (group.is_root()) expected = std::move(own);
  });
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(ranks, [&](const Group& group, c10::Device device) {
      expect_equal(trained_on_two_streams(GetParam(), group, device), expected);
    });
    expect_no_faults();
  }
}

INSTANTIATE_TEST_SUITE_P(OnDevices, TwoStreams, testing::ValuesIn(all_levels), name_of_level);

}  // namespace
}  // namespace lockstep
