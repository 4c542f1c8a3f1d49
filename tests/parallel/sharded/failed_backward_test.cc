// An exception of one rank's own code in backward(): the others are told at once.
#include "base/format.h"
#include "parallel/sharded/pair.h"

#include "support/fuzz.h"

#include <lockstep/mesh/mesh.h>

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

using namespace test;

// Layers of one size, a unit each.
struct Layers {
  Layers(const Ranks& ranks, int count, ShardOptions options) {
    for (int i = 0; i < count; ++i) model->push_back(torch::nn::Linear(4, 4));
    fill_parameters(*model, 3);
    options.units = {"*"};
    handle.emplace(fully_shard(model, ranks, options));
  }
  torch::nn::LinearImpl& layer(int i) {
    return *model[static_cast<std::size_t>(i)]->as<torch::nn::Linear>();
  }
  at::Tensor forward(const std::function<void(at::Tensor&)>& between = {}) {
    at::Tensor x = input;
    for (int i = 0; i < static_cast<int>(model->size()); ++i) {
      x = torch::tanh(layer(i).forward(x));
      if (i == 0 && between) between(x);
    }
    return x.sum();
  }
  torch::nn::Sequential model;
  std::optional<ShardedModule> handle;
  at::Tensor input = values({3, 4}, 1);
};

void throw_in_backward(at::Tensor& middle) {
  middle.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
}

void expect_told(const std::function<void()>& backward, int failed, int size) {
  expect_contains(message_of<ReductionFailed>(backward),
                  formatted("exception on {} of {} ranks", failed, size));
}

// A step in which the backward() of rank 1 fails, and one that goes well.
void expect_told_and_next(Layers& layers, const Group& group,
                          const std::vector<at::Tensor>& expected, const std::string& where) {
  layers.handle->zero_grad();
  if (group.rank() == 1) {
    auto backward = [&] { layers.forward(throw_in_backward).backward(); };
    expect_contains(message_of<std::runtime_error>(backward), "mine");
  } else {
    expect_told([&] { layers.forward().backward(); }, 1, group.size());
  }
  layers.handle->zero_grad();
  layers.forward().backward();
  std::vector<at::Tensor> found = gradients_of(layers.handle->parameters());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(found[i], expected[i])) << where << ", " << i;
}

class FailedBackward : public testing::TestWithParam<ShardLevel> {
 protected:
  void run(const std::function<void(Layers&, Group, const std::string&)>& body, int count = 3) {
    for (ShardStorage storage : all_storages)
      for (int ranks : {2, 3})
        run_as_threads(
            ranks,
            [&](Group group) {
              Layers layers(group, count, {.level = GetParam(), .storage = storage});
              body(layers, group, name_of(storage));
            },
            std::chrono::seconds(10));
  }
};

TEST_P(FailedBackward, OnOneRankIsToldToTheOthersAndTheNextStepWorks) {
  run([](Layers& layers, Group group, const std::string& storage) {
    layers.forward().backward();
    std::vector<at::Tensor> expected = gradients_of(layers.handle->parameters());
    for (int turn = 0; turn < 2; ++turn) expect_told_and_next(layers, group, expected, storage);
  });
}

// At level full nobody knows which units the others still need.
TEST_P(FailedBackward, InTheFirstStepIsToldAndTheNextStepWorks) {
  run([](Layers& layers, Group group, const std::string& storage) {
    Layers same(group, 3, {.level = GetParam()});
    same.forward().backward();
    std::vector<at::Tensor> expected = gradients_of(same.handle->parameters());
    for (int turn = 0; turn < 2; ++turn) expect_told_and_next(layers, group, expected, storage);
  });
}

TEST_P(FailedBackward, OnEveryRankInTheFirstStepLeavesAHandleThatWorks) {
  run([](Layers& layers, Group, const std::string&) {
    auto backward = [&] { layers.forward(throw_in_backward).backward(); };
    for (int turn = 0; turn < 2; ++turn)
      expect_contains(message_of<std::runtime_error>(backward), "mine");
    layers.handle->zero_grad();
    layers.forward().backward();
  });
}

// The step before has gathered one unit more: the failed rank awaits the others there.
TEST_P(FailedBackward, InAStepOfFewerGathersIsToldAndTheNextStepWorks) {
  run([](Layers& layers, Group group, const std::string& storage) {
    layers.input.requires_grad_();
    auto hook = layers.input.register_hook(
        [&](const at::Tensor&) { (void)layers.layer(2).weight.clone(); });
    layers.forward().backward();
    layers.input.remove_hook(hook);
    layers.handle->zero_grad();
    Layers same(group, 3, {.level = GetParam()});
    same.forward().backward();
    std::vector<at::Tensor> expected = gradients_of(same.handle->parameters());
    expect_told_and_next(layers, group, expected, storage);
  });
}

// More units than an engine holds calls of one group.
TEST_P(FailedBackward, WithManyUnitsIsToldAndTheNextStepWorks) {
  constexpr int count = 100;
  run_group(Engine::shm, 3, [&](const Group& group) {
    Layers layers(group, count, {.level = GetParam()});
    auto backward = [&](bool fails) {
      at::Tensor x = layers.input;
      for (int i = 0; i < count; ++i) {
        x = torch::tanh(layers.layer(i).forward(x));
        if (i == count - 3 && fails && group.rank() == 1) throw_in_backward(x);
      }
      x.sum().backward();
    };
    for (int turn = 0; turn < 2; ++turn) {  // gathers in no known order, and in one
      if (group.rank() == 1) {
        expect_contains(message_of<std::runtime_error>([&] { backward(true); }), "mine");
      } else {
        expect_told([&] { backward(true); }, 1, group.size());
      }
      layers.handle->zero_grad();
      backward(false);
      layers.handle->zero_grad();
    }
  });
}

// Gradients also travel between the copies of shards.
TEST_P(FailedBackward, OnAMeshOfTwoAxesIsToldAndTheNextStepWorks) {
  for (Engine engine : {Engine::local, Engine::shm})
    run_group(engine, 4, [&](const Group& group) {
      Mesh mesh(group, {{"dp", 2}, {"fsdp", 2}});
      Layers same(mesh, 30, {.level = GetParam()});
      same.forward().backward();
      std::vector<at::Tensor> expected = gradients_of(same.handle->parameters());
      Layers layers(mesh, 30, {.level = GetParam()});
      for (int turn = 0; turn < 3; ++turn)
        expect_told_and_next(layers, group, expected, std::string(name_of(engine)));
    });
}

// Layers in another order in every step, exceptions anywhere on some ranks or on all.
TEST_P(FailedBackward, OfRandomStepsIsToldAndTheNextStepWorks) {
  for (FuzzRounds rounds("failed_backward", 200); rounds.next();) {
    auto seed = rounds.random()();
    int size = 2 + static_cast<int>(below(rounds.random(), 3));
    run_as_threads(
        size,
        [&](Group group) {
          Random random(seed);  // the same on every rank
          constexpr int count = 6;
          Layers layers(group, count, {.level = GetParam()});
          std::vector<int> order(count);
          std::iota(order.begin(), order.end(), 0);
          for (int step = 0; step < 8; ++step) {
            if (one_in(random, 2)) std::shuffle(order.begin(), order.end(), random);
            // After the layer of this number in the order; the last means that none fails.
            std::vector<std::size_t> fails;
            for (int rank = 0; rank < size; ++rank)
              fails.push_back(one_in(random, 2) ? below(random, count - 1) : count - 1);
            auto failed = size - std::ranges::count(fails, std::size_t{count - 1});
            auto own = fails[static_cast<std::size_t>(group.rank())];
            auto backward = [&] {
              at::Tensor x = values({3, 4}, 1);
              for (std::size_t i = 0; i < count; ++i) {
                x = torch::tanh(layers.layer(order[i]).forward(x));
                if (i == own && own != count - 1) throw_in_backward(x);
              }
              x.sum().backward();
            };
            layers.handle->zero_grad();
            if (own != count - 1) {
              expect_contains(message_of<std::runtime_error>(backward), "mine");
            } else if (failed > 0) {
              expect_told(backward, static_cast<int>(failed), size);
            } else {
              backward();
            }
          }
        },
        std::chrono::seconds(20));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, FailedBackward, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
