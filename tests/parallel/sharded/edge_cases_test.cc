// Uses of a parameter other than forward and backward: each behaves as in one process, or throws an
// error that gives the reason.
#include "parallel/sharded/pair.h"

#include <lockstep/comm/local.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

class ShardedEdgeCase : public OnEveryLevel {};

TEST_P(ShardedEdgeCase, DoubleBackward) {
  run([](Pair& pair, Group) {
    auto second = [](torch::nn::Sequential& net) {
      at::Tensor x = Pair::input().requires_grad_();
      at::Tensor y = torch::tanh(net->forward(x)).sum();
      at::Tensor first = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.square().sum()}, {x})[0];
    };
    EXPECT_TRUE(same_bits(second(pair.model), second(pair.plain)));
  });
}

TEST_P(ShardedEdgeCase, BackwardWithCreateGraphIsRefused) {
  run([](Pair& pair, Group) {
    auto create_graph = [&] {
      pair.model->forward(Pair::input()).sum().backward({}, true, /*create_graph=*/true);
    };
    expect_contains(message_of<Error>(create_graph), "create_graph");
  });
}

// A penalty on gradients: they are computed inside no_sync(), with a history.
TEST_P(ShardedEdgeCase, AGradientInsideNoSyncKeepsItsHistory) {
  run([](Pair& pair, Group) {
    const auto loss_of = [](torch::nn::Sequential& net) {
      at::Tensor loss = torch::tanh(net->forward(Pair::input())).square().sum();
      loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      at::Tensor penalty = at::zeros({});
      for (const at::Tensor& parameter : net->parameters()) {
        EXPECT_TRUE(parameter.grad().requires_grad());
        penalty = penalty + parameter.grad().square().sum();
      }
      return loss + penalty;
    };
    at::Tensor loss;
    {
      auto scope = pair.sharded->no_sync();
      loss = loss_of(pair.model);
    }
    pair.sharded->zero_grad();
    loss.backward();
    loss = loss_of(pair.plain);
    pair.plain->zero_grad();
    loss.backward();
    expect_same_gradients(pair);
  });
}

// Recomputes in backward, with a backward() of its own inside.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::function<at::Tensor(at::Tensor)>* body) {
    context->save_for_backward({x});
    context->saved_data["body"] = reinterpret_cast<std::int64_t>(body);
    return (*body)(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    auto* body = reinterpret_cast<std::function<at::Tensor(at::Tensor)>*>(
        context->saved_data["body"].toInt());
    at::AutoGradMode with_grad(true);
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({(*body)(x)}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

TEST_P(ShardedEdgeCase, Checkpointing) {
  run([](Pair& pair, Group) {
    for (auto* net : {&pair.model, &pair.plain}) {
      std::function<at::Tensor(at::Tensor)> first = [&](at::Tensor x) {
        return torch::gelu((*net)[0]->as<torch::nn::Linear>()->forward(x));
      };
      at::Tensor x = Pair::input().requires_grad_();
      at::Tensor y = Checkpoint::apply(x, &first);
      (*net)[1]->as<torch::nn::Linear>()->forward(y).square().sum().backward();
    }
    expect_same_gradients(pair);
    pair.use();
  });
}

TEST_P(ShardedEdgeCase, AUnitUsedTwice) {
  run([](Pair& pair, Group) {
    for (auto* net : {&pair.model, &pair.plain})
      (*net)->forward((*net)->forward(Pair::input())).square().sum().backward();
    expect_same_gradients(pair);
  });
}

TEST_P(ShardedEdgeCase, NestedUnits) {
  for (int ranks : {1, 3})
    run_as_threads(ranks, [&](Group group) {
      Problem gpt = problems()[2];
      auto model = gpt.make(), plain = gpt.make();
      fill_parameters(*model, 3);
      fill_parameters(*plain, 3);
      auto sharded =
          fully_shard(model, group,
                      {.units = {"transformer.h.*", "transformer.h.*.mlp", "transformer"},
                       .level = GetParam()});
      EXPECT_EQ(sharded.units().size(), 5U);
      EXPECT_EQ(bits_of(gpt.loss(*model, 1)), bits_of(gpt.loss(*plain, 1)));
      gpt.loss(*model, 1).backward();
    });
}

TEST_P(ShardedEdgeCase, InferenceMode) {
  run([](Pair& pair, Group) {
    at::Tensor expected = pair.plain->forward(Pair::input()).detach();
    {
      c10::InferenceMode inference;
      at::Tensor found = pair.model->forward(Pair::input());
      EXPECT_TRUE(found.equal(expected));
    }
    pair.model->forward(Pair::input()).sum().backward();
    pair.plain->forward(Pair::input()).sum().backward();
    expect_same_gradients(pair);
  });
}

TEST_P(ShardedEdgeCase, DividedInsideInferenceMode) {
  for (int ranks : {1, 3})
    run_as_threads(ranks, [](Group group) {
      torch::nn::Linear model(4, 6);
      c10::InferenceMode inference;
      torch::nn::Linear untrainable(4, 6);
      auto refused = [&] { auto sharded = fully_shard(untrainable, group); };
      expect_words(message_of<InvalidArgument>(refused), {"weight", "InferenceMode"});
      auto sharded = fully_shard(model, group, {.level = GetParam()});
      c10::InferenceMode over(false);
      model->forward(Pair::input()).sum().backward();
      EXPECT_TRUE(sharded.parameters()[0].grad().defined());
    });
}

TEST_P(ShardedEdgeCase, SeveralThreadsInForward) {
  run([](Pair& pair, Group group) {
    std::optional<Unsharded> scope;
    if (group.size() > 1) scope.emplace(pair.sharded->unsharded());
    torch::NoGradGuard no_grad;
    at::Tensor expected = pair.plain->forward(Pair::input());
    std::vector<std::thread> threads;
    std::vector<int> equal(4, 0);
    for (std::size_t i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        torch::NoGradGuard in_this_thread;
        at::set_num_threads(1);
        for (int again = 0; again < 20; ++again)
          equal[i] += same_bits(pair.model->forward(Pair::input()), expected) ? 1 : 0;
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(equal, (std::vector<int>(4, 20)));
  });
}

TEST_P(ShardedEdgeCase, UnusedParametersAreNamed) {
  run([](Pair& pair, Group) {
    auto step = [&] { pair.layer(0).forward(Pair::input()).sum().backward(); };
    expect_words(message_of<ReductionFailed>(step),
                 {"1.weight", "1.bias", "find_unused_parameters"});
    pair.sharded->zero_grad();
    pair.model->forward(Pair::input()).sum().backward();
    pair.plain->forward(Pair::input()).sum().backward();
    expect_same_gradients(pair);
  });
}

TEST_P(ShardedEdgeCase, UnusedParametersMayBeAllowed) {
  run(
      [](Pair& pair, Group group) {
        pair.layer(0).forward(Pair::input()).sum().backward();
        for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
             pair.sharded->named_parameters())
          EXPECT_EQ(tensor.grad().defined(), name.starts_with("0.")) << name;
        if (GetParam() == ShardLevel::full) return;  // a gather is collective
        pair.sharded->zero_grad();
        at::Tensor y = pair.layer(0).forward(Pair::input());
        if (group.is_root()) y = pair.layer(1).forward(y);
        y.sum().backward();
        for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
             pair.sharded->named_parameters())
          EXPECT_TRUE(tensor.grad().defined()) << name;
      },
      {.find_unused_parameters = true});
}

// All ranks use the same units in the same order, but one leaves out a parameter of the last unit.
TEST_P(ShardedEdgeCase, UnusedParametersMayDifferBetweenRanksThatUseTheSameUnits) {
  run_as_threads(2, [](const Group& group) {
    torch::nn::Sequential model;
    for (int i = 0; i < 6; ++i) model->push_back(torch::nn::Linear(6, 6));
    test::fill_parameters(*model, 1);
    Handle handle = fully_shard(model, group,
                                {.units = {"*"},
                                 .level = GetParam(),
                                 .find_unused_parameters = true,
                                 .timeout = std::chrono::seconds(10)});
    at::Tensor y = test::values({2, 6}, group.rank());
    for (int i = 0; i < 5; ++i) y = model[i]->as<torch::nn::Linear>()->forward(y);
    auto* last = model[5]->as<torch::nn::Linear>();
    y = group.is_root() ? last->forward(y) : at::linear(y, last->weight);
    y.sum().backward();
    for (const Part& part : handle.named_parameters())
      EXPECT_TRUE(part.tensor.grad().defined()) << part.name;
  });
}

TEST_P(ShardedEdgeCase, AnExceptionInForward) {
  run([](Pair& pair, Group) {
    EXPECT_THROW((void)pair.model->forward(values({3, 5}, 1)), c10::Error);
    pair.use();
    pair.model->forward(Pair::input()).sum().backward();
    pair.plain->forward(Pair::input()).sum().backward();
    expect_same_gradients(pair);
  });
}

TEST_P(ShardedEdgeCase, TwoModels) {
  run([](Pair& pair, Group group) {
    Pair other(group, {.level = GetParam()});
    for (bool sharded : {true, false}) {
      auto& first = sharded ? pair.model : pair.plain;
      auto& second = sharded ? other.model : other.plain;
      (first->forward(Pair::input()) * second->forward(Pair::input(2))).sum().backward();
    }
    expect_same_gradients(pair);
    expect_same_gradients(other);
  });
}

TEST_P(ShardedEdgeCase, TwoReducedBackwardsAddUp) {
  run([](Pair& pair, Group) {
    for (int again = 0; again < 3; ++again)
      for (auto* net : {&pair.model, &pair.plain})
        (*net)->forward(Pair::input(again)).square().sum().backward();
    expect_same_gradients(pair);
    pair.sharded->zero_grad(/*set_to_none=*/false);
    pair.plain->zero_grad();
    {
      auto scope = pair.sharded->no_sync();
      pair.model->forward(Pair::input(4)).square().sum().backward();
    }
    pair.model->forward(Pair::input(5)).square().sum().backward();
    for (int seed : {4, 5}) pair.plain->forward(Pair::input(seed)).square().sum().backward();
    expect_same_gradients(pair);
  });
}

TEST_P(ShardedEdgeCase, AGradientThatIsHeldKeepsItsValues) {
  run([](Pair& pair, Group) { expect_held_gradients_stay(pair); });
}

TEST_P(ShardedEdgeCase, EvaluationBetweenBackwardAndStep) {
  run([](Pair& pair, Group group) {
    auto ours = momentum()(pair.sharded->parameters());
    auto theirs = momentum()(pair.plain->parameters());
    auto of_plain = pair.plain->parameters();
    for (int step = 0; step < 3; ++step) {
      for (auto* net : {&pair.model, &pair.plain}) {
        net == &pair.model ? pair.sharded->zero_grad() : pair.plain->zero_grad();
        (*net)->forward(Pair::input(step)).square().sum().backward();
      }
      // Average explicitly: three times a number, divided by three, may round to another number.
      std::vector<std::vector<at::Tensor>> of_ranks(static_cast<std::size_t>(group.size()),
                                                    gradients_of(of_plain));
      auto averages = average(of_ranks);
      for (std::size_t i = 0; i < averages.size(); ++i)
        of_plain[i].mutable_grad() = averages[i].clone();
      pair.use();
      ours->step();
      theirs->step();
      pair.use();
    }
  });
}

// A unit that was written in place is gathered again when another unit is used. The shards change
// while this gather is in flight.
TEST_P(ShardedEdgeCase, ShardsChangeWhileAUnitIsOnItsWay) {
  auto body = [](Pair& pair, const Group&) {
    at::NoGradGuard no_grad;
    auto write_and_go_on = [&] {
      for (auto* layer : {&pair.layer(0), &pair.plain_layer(0)}) layer->weight.mul_(0.5);
      (void)pair.layer(1).forward(values({3, 6}, 1));
    };
    for (int turn = 0; turn < 3; ++turn) {
      write_and_go_on();
      for (const at::Tensor& slice : pair.sharded->parameters()) slice.mul_(0.75);
      for (const at::Tensor& parameter : pair.plain->parameters()) parameter.mul_(0.75);
      pair.use();
      write_and_go_on();
      std::map<std::string, at::Tensor> others;
      for (auto& item : pair.plain->named_parameters())
        others[item.key()] = item.value().mul_(3).clone();
      pair.sharded->load_state_dict(others);
      pair.use();
    }
  };
  run(body);
  for (ShardStorage storage : all_storages)
    run_group(BackendKind::shm, 2, [&](const Group& group) {
      Pair pair(group, {.level = GetParam(), .storage = storage});
      body(pair, group);
    });
}

TEST_P(ShardedEdgeCase, Autocast) {
  run([](Pair& pair, Group) {
    auto forward = [](torch::nn::Sequential& net) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::Tensor y = net->forward(Pair::input());
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return y;
    };
    at::Tensor y = forward(pair.model), expected = forward(pair.plain);
    EXPECT_TRUE(y.equal(expected));
    y.sum().backward();
    expected.sum().backward();
    expect_same_gradients(pair);
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, ShardedEdgeCase, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
