// If a module changes after its handle was created, the next use of the handle throws an error that
// names the change, on every rank.
#include "parallel/every_strategy.h"

namespace lockstep {
namespace {

using namespace test;

class LateChange : public OnEveryStrategy {};

// An InvalidArgument in backward() ends a sharded handle: ranks that have not detected the change
// yet get an Aborted with the same text.
void expect_backward_names(const std::function<void()>& backward, const std::string& name) {
  expect_words(message_of<Error>(backward), {name, "since"});
}

void expect_error_names(const std::function<void()>& action, const std::string& name) {
  expect_words(message_of<InvalidArgument>(action), {name, "since"});
}

TEST_P(LateChange, ANewParameterIsNamed) {
  run([](BranchesImpl& model, auto& handle, Group) {
    model.forward(values({2, 3}, 1), "abc").sum().backward();
    handle.zero_grad();
    at::Tensor late = model.register_parameter("late", at::ones({3}));
    for (int again : {0, 1}) {
      expect_error_names([&] { handle.zero_grad(); }, "late");
      expect_backward_names(
          [&] {
            (model.forward(values({2, 3}, again), "abc") * late).sum().backward();
          },
          "late");
    }
  });
}

TEST_P(LateChange, ABufferThatForwardRegistersIsNamed) {
  run([](BranchesImpl& model, auto& handle, Group) {
    at::Tensor seen;
    auto backward = [&](int seed) {
      const at::Tensor x = values({2, 3}, seed);
      if (!seen.defined()) seen = model.register_buffer("seen", at::zeros({3}));
      seen.mul_(0.9).add_(x.mean(0), 0.1);
      model.forward(x, "abc").sum().backward();
    };
    for (int again : {0, 1}) {
      expect_backward_names([&] { backward(again); }, "seen is a new buffer");
      expect_error_names([&] { handle.zero_grad(); }, "seen is a new buffer");
    }
  });
}

TEST_P(LateChange, ANewBufferOfALayerIsNamed) {
  run([](BranchesImpl& model, auto& handle, Group) {
    model.layers[1]->register_buffer("seen", at::zeros({3}));
    expect_error_names([&] { handle.zero_grad(); }, "b.seen is a new buffer");
  });
}

TEST_P(LateChange, ABufferThatRequiresAGradientNowIsNamed) {
  run(
      [](BranchesImpl& model, auto& handle, Group) {
        at::Tensor scale = model.named_buffers()["scale"];
        scale.set_requires_grad(true);
        expect_error_names([&] { handle.zero_grad(); }, "scale requires a gradient now");
        scale.set_requires_grad(false);
        handle.zero_grad();
        model.forward(values({2, 3}, 1), "abc").sum().backward();
      },
      [](BranchesImpl& model) { model.register_buffer("scale", at::ones({3})); });
}

TEST_P(LateChange, ANewModuleIsNamed) {
  run([](BranchesImpl& model, auto& handle, Group) {
    model.register_module("late", torch::nn::Linear(3, 3));
    expect_error_names([&] { handle.zero_grad(); }, "late.weight");
    expect_backward_names(
        [&] {
          model.forward(values({2, 3}, 1), "abc").sum().backward();
        },
        "late.weight");
  });
}

TEST_P(LateChange, OneRanksNewParameterEndsTheOthersBackwardAtOnce) {
  run([](BranchesImpl& model, auto& handle, Group group) {
    if (group.size() == 1) return;
    auto backward = [&] { model.forward(values({2, 3}, 1), "abc").sum().backward(); };
    backward();
    handle.zero_grad();
    if (group.rank() == 1) model.register_parameter("late", at::ones({3}));
    if (group.rank() == 1) {
      expect_error_names(backward, "late");
    } else {
      const std::string text = GetParam().sharded ? message_of<Aborted>(backward)
                                                  : message_of<ReductionFailed>(backward);
      expect_words(text, {"rank 1", "late is a new parameter"});
      if (!GetParam().sharded) expect_contains(text, "exception on 1 of 3 ranks: rank 1: ");
    }
  });
}

TEST_P(LateChange, WhatWasFrozenAndTrainsNowIsNamed) {
  auto freeze = [](BranchesImpl& model) {
    for (auto& parameter : model.layers[1]->parameters()) parameter.requires_grad_(false);
  };
  run(
      [](BranchesImpl& model, auto& handle, Group group) {
        model.forward(values({2, 3}, 1), "abc").sum().backward();
        handle.zero_grad();
        model.layers[1]->bias.requires_grad_(true);
        for (int again : {0, 1}) {
          expect_error_names([&] { handle.zero_grad(); }, "b.bias");
          expect_backward_names(
              [&] {
                model.forward(values({2, 3}, again), "abc").sum().backward();
              },
              "b.bias");
        }
        model.layers[1]->bias.requires_grad_(false);
        handle.zero_grad();
        if (GetParam().sharded && group.size() > 1) return;  // the handle is dead
        model.forward(values({2, 3}, 1), "abc").sum().backward();
      },
      freeze);
}

TEST(LateBuffers, ThatEachRankKeepsAreNoError) {
  run_as_threads(2, [](Group group) {
    auto train = [&](Branches& model, auto&& handle) {
      const at::Tensor own = at::full({3}, group.rank());
      at::Tensor late = model->layers[2]->register_buffer("late", own.clone());
      handle.zero_grad();
      model->forward(values({2, 3}, 1), "abc").sum().backward();
      EXPECT_TRUE(late.equal(own));
    };
    Branches a, b, c, d;
    train(a, DistributedDataParallel(a, group, {.broadcast_buffers = false}));
    train(b, DistributedDataParallel(b, group, {.ignored = {"c"}}));
    train(c, fully_shard(c, group, {.broadcast_buffers = false}));
    train(d, fully_shard(d, group, {.ignored = {"c"}}));
  });
}

INSTANTIATE_TEST_SUITE_P(All, LateChange, testing::ValuesIn(every_strategy()), name_of_strategy);

}  // namespace
}  // namespace lockstep
