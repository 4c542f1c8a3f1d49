// Behavior of a backward() step that is the same under every strategy.
#include "parallel/backward_step.h"

#include "parallel/every_strategy.h"

#include <stdexcept>

namespace lockstep {
namespace {

using namespace test;

class BackwardStep : public OnEveryStrategy {};

at::Tensor batch(int seed) { return values({2, 3}, seed); }

void expect_handle_has(const auto& handle, const std::vector<at::Tensor>& expected) {
  std::vector<at::Tensor> found = gradients_of(handle.parameters());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
}

// The exception is thrown after all gradients of the parameters exist, while backward() continues
// to its inputs.
TEST_P(BackwardStep, AnExceptionAfterTheLastGradientIsToldToTheOthers) {
  run([](BranchesImpl& model, auto& handle, Group group) {
    auto backward = [&](bool throws) {
      at::Tensor leaf = batch(group.rank()).requires_grad_();
      at::Tensor input = leaf * 2;
      if (throws)
        input.register_hook(
            [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
      model.forward(input, "abc").sum().backward();
    };
    backward(false);
    auto expected = gradients_of(handle.parameters());
    for (int turn = 0; turn < 2; ++turn) {
      handle.zero_grad();
      if (group.rank() == group.size() - 1) {
        EXPECT_THROW(backward(true), std::runtime_error);
      } else {
        const auto step = [&] { backward(false); };
        if (GetParam().sharded) {
          expect_words(message_of<Aborted>(step),
                       {"rank 2", "fully_shard(): an exception ended backward()"});
        } else {
          expect_contains(message_of<ReductionFailed>(step),
                          "exception on 1 of 3 ranks: rank 2; gradients");
        }
      }
      handle.zero_grad();
      if (GetParam().sharded && group.size() > 1) return;  // the group is dead
      backward(false);
      expect_handle_has(handle, expected);
    }
  });
}

// The gradients of the inner backward() are added to those of the outer one, which averages both.
TEST_P(BackwardStep, ABackwardInsideNoSyncMayRunInsideAnotherOne) {
  run([](BranchesImpl& model, auto& handle, Group group) {
    auto backward_alone = [&] {
      torch::AutoGradMode on(true);
      auto scope = handle.no_sync();
      model.forward(batch(10 + group.rank()), "a").sum().backward();
    };
    backward_alone();
    model.forward(batch(group.rank()), "abc").sum().backward();
    auto expected = gradients_of(handle.parameters());
    handle.zero_grad();
    at::Tensor input = batch(group.rank()).requires_grad_();
    at::Tensor middle = model.forward(input, "a");
    middle.register_hook([&](const at::Tensor& gradient) {
      backward_alone();
      return gradient;
    });
    model.forward(middle, "bc").sum().backward();
    expect_handle_has(handle, expected);
  });
}

TEST(FailedBackward, IsSaidWithTheRankOfTheWorld) {
  run_group(BackendKind::shm, 3, [](Group world) {
    Group group = world.split(world.rank() == 0 ? 0 : 1);
    if (world.rank() == 0) return;
    Branches model;
    DistributedDataParallel ddp(model, group);
    at::Tensor middle = model->layers[0](batch(1));
    if (group.rank() == 1)
      middle.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
    const auto backward = [&] { model->forward(middle, "bc").sum().backward(); };
    if (group.rank() == 1) {
      EXPECT_THROW(backward(), std::runtime_error);
    } else {
      expect_contains(message_of<ReductionFailed>(backward),
                      "exception on 1 of 2 ranks: rank 1 (rank 2 of the world); gradients");
    }
    group.barrier().wait();
  });
}

INSTANTIATE_TEST_SUITE_P(All, BackwardStep, testing::ValuesIn(every_strategy()), name_of_strategy);

}  // namespace
}  // namespace lockstep
