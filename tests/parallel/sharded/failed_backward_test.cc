// An exception from user code on one rank in backward(): all ranks get an error at once, and the
// handle is dead.
#include "base/format.h"
#include "parallel/sharded/pair.h"

#include "support/fuzz.h"

#include <lockstep/mesh/mesh.h>

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

using namespace test;

// Layers of equal size; each is a unit.
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

// Runs a step in which the backward() of rank 1 fails.
void expect_aborted(Layers& layers, const Group& group, const std::function<void(bool)>& backward) {
  if (group.rank() == 1) {
    expect_contains(message_of<std::runtime_error>([&] { backward(true); }), "mine");
  } else {
    expect_words(message_of<Aborted>([&] { backward(false); }),
                 {"rank 1", "fully_shard(): an exception ended backward()"});
  }
  // Every rank posts gradients or its status in the next step.
  layers.handle->zero_grad();
  expect_contains(message_of<Aborted>([&] { backward(false); }), "an exception ended backward()");
}

void expect_aborted(Layers& layers, const Group& group) {
  expect_aborted(layers, group, [&](bool fails) {
    layers.forward(fails ? throw_in_backward : nullptr).backward();
  });
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

TEST_P(FailedBackward, OnOneRankEndsTheHandleOnAllRanks) {
  run([](Layers& layers, Group group, const std::string&) {
    layers.forward().backward();
    layers.handle->zero_grad();
    expect_aborted(layers, group);
  });
}

TEST_P(FailedBackward, InTheFirstStepEndsTheHandleOnAllRanks) {
  run([](Layers& layers, Group group, const std::string&) { expect_aborted(layers, group); });
}

TEST_P(FailedBackward, InsideNoSyncEndsTheHandleOnAllRanks) {
  run([](Layers& layers, Group group, const std::string&) {
    if (group.rank() == 1) {
      const auto scope = layers.handle->no_sync();
      const auto backward = [&] { layers.forward(throw_in_backward).backward(); };
      expect_contains(message_of<std::runtime_error>(backward), "mine");
    }
    expect_contains(message_of<Aborted>([&] {
                      {
                        const auto scope = layers.handle->no_sync();
                        layers.forward().backward();
                      }
                      layers.forward().backward();
                    }),
                    "an exception ended backward()");
  });
}

// The first rank that fails aborts the others, which have not reached their own exception.
TEST_P(FailedBackward, OnEveryRankEndsTheHandle) {
  run([](Layers& layers, Group, const std::string&) {
    const auto backward = [&] { layers.forward(throw_in_backward).backward(); };
    try {
      backward();
      ADD_FAILURE() << "no error";
    } catch (const Aborted& error) {
      expect_contains(error.what(), "an exception ended backward()");
    } catch (const std::runtime_error& error) {
      expect_contains(error.what(), "mine");
    }
    layers.handle->zero_grad();
    expect_contains(message_of<Aborted>([&] { layers.forward().backward(); }), "ended backward()");
  });
}

TEST_P(FailedBackward, OfOneRankAloneLeavesAHandleThatWorks) {
  run_as_threads(1, [](Group group) {
    Layers layers(group, 3, {.level = GetParam()});
    layers.forward().backward();
    const std::vector<at::Tensor> expected = gradients_of(layers.handle->parameters());
    for (int turn = 0; turn < 2; ++turn) {
      layers.handle->zero_grad();
      const auto backward = [&] { layers.forward(throw_in_backward).backward(); };
      expect_contains(message_of<std::runtime_error>(backward), "mine");
      layers.handle->zero_grad();
      layers.forward().backward();
      const std::vector<at::Tensor> found = gradients_of(layers.handle->parameters());
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
    }
  });
}

// More units than the number of calls that a backend can hold per group.
TEST_P(FailedBackward, WithManyUnitsEndsTheHandleOnAllRanks) {
  constexpr int count = 100;
  for (int steps_before : {0, 1})  // gathers without a recorded order, and with one
    run_group(BackendKind::shm, 3, [&](const Group& group) {
      Layers layers(group, count, {.level = GetParam()});
      const auto backward = [&](bool fails) {
        at::Tensor x = layers.input;
        for (int i = 0; i < count; ++i) {
          x = torch::tanh(layers.layer(i).forward(x));
          if (i == count - 3 && fails) throw_in_backward(x);
        }
        x.sum().backward();
      };
      for (int step = 0; step < steps_before; ++step) {
        backward(false);
        layers.handle->zero_grad();
      }
      expect_aborted(layers, group, backward);
    });
}

// Gradients are also reduced between the replicas of shards.
TEST_P(FailedBackward, OnAMeshOfTwoAxesEndsTheHandleOnAllRanks) {
  for (BackendKind backend : {BackendKind::local, BackendKind::shm})
    run_group(backend, 4, [&](const Group& group) {
      Mesh mesh(group, {{"dp", 2}, {"fsdp", 2}});
      Layers layers(mesh, 30, {.level = GetParam()});
      layers.forward().backward();
      layers.handle->zero_grad();
      if (group.rank() == 1) {
        const auto backward = [&] { layers.forward(throw_in_backward).backward(); };
        expect_contains(message_of<std::runtime_error>(backward), "mine");
      } else {
        expect_contains(message_of<Aborted>([&] { layers.forward().backward(); }),
                        "an exception ended backward()");
      }
    });
}

// The layers run in a different order in each step; in the last step, some ranks throw at a random
// layer.
TEST_P(FailedBackward, OfRandomStepsEndsTheHandleOnAllRanks) {
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
          const auto steps = static_cast<int>(below(random, 3));
          for (int step = 0; step <= steps; ++step) {
            const bool is_last = step == steps;
            if (one_in(random, 2)) std::shuffle(order.begin(), order.end(), random);
            // Each rank throws after the layer at this index of the order; count - 1 means that it
            // does not throw.
            std::vector<std::size_t> fails;
            for (int rank = 0; rank < size; ++rank)
              fails.push_back(is_last && (rank == 0 || one_in(random, 2)) ? below(random, count - 1)
                                                                          : count - 1);
            const auto own = fails[static_cast<std::size_t>(group.rank())];
            layers.handle->zero_grad();
            try {
              at::Tensor x = values({3, 4}, 1);
              for (std::size_t i = 0; i < count; ++i) {
                x = torch::tanh(layers.layer(order[i]).forward(x));
                if (i == own && own != count - 1) throw_in_backward(x);
              }
              x.sum().backward();
              EXPECT_FALSE(is_last);
            } catch (const Aborted& error) {
              EXPECT_TRUE(is_last) << error.what();
              expect_contains(error.what(), "an exception ended backward()");
            } catch (const std::runtime_error& error) {
              EXPECT_NE(own, count - 1) << error.what();
              expect_contains(error.what(), "mine");
            }
          }
        },
        std::chrono::seconds(20));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, FailedBackward, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
