// An exception of one rank's own code in backward(): the others are told at once.
#include "base/format.h"
#include "parallel/sharded/pair.h"

#include <lockstep/base/deadline.h>
#include <lockstep/mesh/mesh.h>

namespace lockstep {
namespace {

using namespace test;

// Three layers, a unit each.
struct Three {
  template <typename Ranks>
  Three(const Ranks& ranks, ShardOptions options) {
    for (int i = 0; i < 3; ++i) model->push_back(torch::nn::Linear(4, 4));
    fill_parameters(*model, 3);
    options.units = {"*"};
    handle.emplace(fully_shard(model, ranks, options));
  }
  at::Tensor forward(const std::function<void(at::Tensor&)>& between = {}) {
    at::Tensor x = values({3, 4}, 1);
    for (int i = 0; i < 3; ++i) {
      x = torch::tanh(model[static_cast<std::size_t>(i)]->as<torch::nn::Linear>()->forward(x));
      if (i == 0 && between) between(x);
    }
    return x.sum();
  }
  torch::nn::Sequential model;
  std::optional<ShardedModule> handle;
};

void throw_in_backward(at::Tensor& middle) {
  middle.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
}

class FailedBackward : public testing::TestWithParam<ShardLevel> {
 protected:
  void run(const std::function<void(Three&, Group, const std::string&)>& body) {
    for (ShardStorage storage : all_storages)
      for (int ranks : {2, 3})
        run_as_threads(
            ranks,
            [&](Group group) {
              Three three(group, {.level = GetParam(), .storage = storage});
              body(three, group, name_of(storage));
            },
            std::chrono::seconds(10));
  }
};

// In a step whose order of gathers is known, and at the other levels in any: the next one works.
TEST_P(FailedBackward, OnOneRankIsToldToTheOthersAndTheNextStepWorks) {
  run([](Three& three, Group group, const std::string& storage) {
    three.forward().backward();
    std::vector<at::Tensor> expected = gradients_of(three.handle->parameters());
    for (int turn = 0; turn < 2; ++turn) {
      three.handle->zero_grad();
      if (group.rank() == 1) {
        auto backward = [&] { three.forward(throw_in_backward).backward(); };
        expect_contains(message_of<std::runtime_error>(backward), "mine");
      } else {
        expect_contains(message_of<ReductionFailed>([&] { three.forward().backward(); }),
                        formatted("exception on 1 of {} ranks", group.size()));
      }
      three.handle->zero_grad();
      three.forward().backward();
      std::vector<at::Tensor> found = gradients_of(three.handle->parameters());
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(same_bits(found[i], expected[i])) << storage << ", " << i;
    }
  });
}

// In the first one at level full nobody knows which units the others still need.
TEST_P(FailedBackward, InTheFirstStepItIsToldAtOnceToo) {
  run([](Three& three, Group group, const std::string&) {
    auto begin = Clock::now();
    if (group.rank() == 1) {
      auto backward = [&] { three.forward(throw_in_backward).backward(); };
      expect_contains(message_of<std::runtime_error>(backward), "mine");
    } else {
      try {
        three.forward().backward();
        ADD_FAILURE() << "no error";
      } catch (const ReductionFailed& error) {
        expect_contains(error.what(), "ended with an exception");
      } catch (const Mismatch& error) {
        EXPECT_EQ(GetParam(), ShardLevel::full);
        expect_contains(error.what(), "ended with an exception");
      }
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  });
}

TEST_P(FailedBackward, OnEveryRankInTheFirstStepLeavesAHandleThatWorks) {
  run([](Three& three, Group, const std::string&) {
    auto backward = [&] { three.forward(throw_in_backward).backward(); };
    for (int turn = 0; turn < 2; ++turn)
      expect_contains(message_of<std::runtime_error>(backward), "mine");
    three.handle->zero_grad();
    three.forward().backward();
  });
}

// Gradients also travel between the copies of shards.
TEST_P(FailedBackward, OnAMeshOfTwoAxesIsToldAtOnceToo) {
  run_as_threads(
      4,
      [](Group group) {
        Three three(Mesh(group, {{"dp", 2}, {"fsdp", 2}}), {.level = GetParam()});
        three.forward().backward();
        std::vector<at::Tensor> expected = gradients_of(three.handle->parameters());
        for (int turn = 0; turn < (GetParam() == ShardLevel::full ? 1 : 2); ++turn) {
          three.handle->zero_grad();
          if (group.rank() == 1) {
            auto backward = [&] { three.forward(throw_in_backward).backward(); };
            expect_contains(message_of<std::runtime_error>(backward), "mine");
          } else {
            try {
              three.forward().backward();
              ADD_FAILURE() << "no error";
            } catch (const ReductionFailed& error) {
              expect_contains(error.what(), "ended with an exception on");
            } catch (const Mismatch& error) {
              EXPECT_EQ(GetParam(), ShardLevel::full);
              expect_contains(error.what(), "ended with an exception");
            }
          }
          if (GetParam() == ShardLevel::full) return;
          three.handle->zero_grad();
          three.forward().backward();
          std::vector<at::Tensor> found = gradients_of(three.handle->parameters());
          for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
        }
      },
      std::chrono::seconds(10));
}

INSTANTIATE_TEST_SUITE_P(Levels, FailedBackward, every_level(), name_of_level);

}  // namespace
}  // namespace lockstep
