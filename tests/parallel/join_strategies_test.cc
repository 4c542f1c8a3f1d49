// Ranks with different numbers of batches, under every strategy.
#include "parallel/every_strategy.h"

#include <lockstep/parallel/join.h>

#include <ATen/ops/zeros.h>

namespace lockstep {
namespace {

using namespace test;

at::Tensor strategy_rows(int rank, int step) { return values({2 + rank, 3}, 20 * step + rank); }

class JoinStrategies : public OnEveryStrategy {
 protected:
  // Two epochs in which rank r has `batches(r)` batches of `micro_batches` micro-batches each.
  void train(const std::function<int(int)>& batches, int micro_batches) {
    run([&](BranchesImpl& model, auto& handle, Group group) {
      auto loss = [&](const at::Tensor& x) { return model.forward(x, "abc").square().sum(); };
      torch::optim::SGD sgd(handle.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      Branches expected;
      torch::optim::SGD one(expected->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      for (int epoch = 0; epoch < 2; ++epoch) {
        at::Tensor none = at::zeros({0, 3});
        Join join({&handle.joinable()}, {.empty_step = [&] { loss(none).backward(); }});
        for (int step = 0; step < batches(group.rank()); ++step) {
          handle.zero_grad();
          for (int part = 1; part < micro_batches; ++part) {
            auto scope = handle.no_sync();
            loss(strategy_rows(group.rank(), step + 50 * part)).backward();
          }
          loss(strategy_rows(group.rank(), step)).backward();
          sgd.step();
        }
        join.finish([&] {
          sgd.step();
          handle.zero_grad();
        });
        for (int step = 0; step < batches(group.size() - 1); ++step) {
          one.zero_grad();
          for (int rank = 0; rank < group.size(); ++rank)
            for (int part = 0; part < micro_batches && step < batches(rank); ++part) {
              at::Tensor x = strategy_rows(rank, step + 50 * part);
              (expected->forward(x, "abc").square().sum() / group.size()).backward();
            }
          one.step();
        }
        auto found = handle.state_dict();
        for (const auto& item : expected->named_parameters())
          EXPECT_TRUE(at::allclose(found.at(item.key()), item.value(), 1e-4, 1e-5))
              << item.key() << " epoch " << epoch;
      }
    });
  }
};

TEST_P(JoinStrategies, EqualOneProcess) {
  train([](int rank) { return 1 + 2 * rank; }, 1);
}

TEST_P(JoinStrategies, ARankWithoutInputs) {
  train([](int rank) { return 2 * rank; }, 1);
}

TEST_P(JoinStrategies, MicroBatches) {
  train([](int rank) { return 1 + rank; }, 3);
}

TEST_P(JoinStrategies, EarlyTerminationLeavesThemUsable) {
  run([](BranchesImpl& model, auto& handle, Group group) {
    if (group.size() == 1) return;
    auto backward = [&](const at::Tensor& x) { model.forward(x, "abc").sum().backward(); };
    auto train = [&] {
      Join join({&handle.joinable()}, {.throw_on_early_termination = true, .empty_step = [&] {
                                         backward(at::zeros({0, 3}));
                                       }});
      for (int step = 0; step < (group.rank() == 1 ? 2 : 4); ++step) {
        handle.zero_grad();
        backward(strategy_rows(group.rank(), step));
      }
      join.finish([] {});
    };
    expect_contains(message_of<EarlyTermination>(train), "the inputs of 1 of 3 ranks have ended");
    handle.zero_grad();
    backward(strategy_rows(group.rank(), 9));
    for (const at::Tensor& parameter : handle.parameters())
      if (parameter.numel() > 0) EXPECT_TRUE(parameter.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(All, JoinStrategies, testing::ValuesIn(every_strategy()),
                         name_of_strategy);

TEST(JoinOfShards, NeedsAnEmptyStep) {
  Branches model;
  auto handle = fully_shard(model, Group(), {.units = {"a"}});
  expect_contains(message_of<InvalidArgument>([&] { Join join({&handle.joinable()}); }),
                  "Join: fully_shard() needs JoinOptions::empty_step");
  Join idle({&handle.joinable()}, {.empty_step = [] {}});
  idle.finish(nullptr);
}

}  // namespace
}  // namespace lockstep
