#include "parallel/data/hook_support.h"

#include <lockstep/parallel/data/communication_hook.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

namespace lockstep {
namespace {

using namespace test;

const std::vector<std::vector<std::int64_t>> hook_shapes = {{4, 6}, {5}, {2, 3, 2}};

class Hooks : public testing::TestWithParam<BackendRanks> {};

DistributedDataParallelOptions hook_options(std::shared_ptr<CommunicationHook> hook,
                                            std::int64_t bytes = 40) {
  return {.bucket_bytes = bytes, .first_bucket_bytes = bytes, .hook = std::move(hook)};
}

TEST_P(Hooks, AveragesLikeNoHook) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Branches plain, hooked;
    DistributedDataParallel one(plain, group, {.find_unused_parameters = true});
    DistributedDataParallelOptions options = hook_options(average_hook());
    options.find_unused_parameters = true;
    DistributedDataParallel other(hooked, group, options);
    for (int step = 0; step < 4; ++step) {
      std::string path = step == 2 && group.is_root() ? "a" : "cab";
      for (auto* model : {&plain, &hooked})
        (*model)->forward(values({2, 3}, group.rank() + step), path).square().sum().backward();
      for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
        at::Tensor expected = plain->parameters()[i].grad(), found = hooked->parameters()[i].grad();
        ASSERT_EQ(expected.defined(), found.defined());
        if (expected.defined()) EXPECT_TRUE(same_bits(expected, found));
      }
      if (step == 1) one.zero_grad(), other.zero_grad();
    }
  });
}

TEST_P(Hooks, CompressionRoundsWhatTravels) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    for (auto dtype : {at::kBFloat16, at::kHalf}) {
      Table table(hook_shapes, at::kDouble);
      auto hook = dtype == at::kHalf ? fp16_compression() : bf16_compression();
      DistributedDataParallel ddp(table, group, hook_options(hook));
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        backward(ddp, *table, step);
        for (std::size_t i = 0; i < hook_shapes.size(); ++i) {
          at::Tensor sum = at::zeros_like(table->weights[i]);
          for (int rank = 0; rank < group.size(); ++rank)
            sum += gradients_for(*table, rank, step)[i].to(dtype).to(at::kDouble);
          double allowed = dtype == at::kHalf ? 1e-3 : 8e-3;  // some roundings of numbers below 0.5
          EXPECT_LT(largest_difference(table->weights[i].grad(), sum / group.size()), allowed);
          at::Tensor first = table->weights[i].grad().clone();
          group.broadcast(first).wait();
          EXPECT_TRUE(same_bits(first, table->weights[i].grad()));
        }
      }
    }
  });
}

TEST_P(Hooks, CompressionSendsHalfTheBytesOfFloat) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto bytes_of = [&](std::shared_ptr<CommunicationHook> hook) {
      Table table({{64, 32}, {128}}, at::kFloat);
      DistributedDataParallel ddp(table, group, hook_options(std::move(hook), 1 << 20));
      for (int step : {0, 1}) backward(ddp, *table, step);  // values are compared in these steps
      std::int64_t before = group.traffic().bytes;
      backward(ddp, *table, 2);
      return group.traffic().bytes - before;
    };
    if (group.size() == 1) return;
    // two parameters, a write to one, and the rank itself
    const std::int64_t status = bytes_of_sum(group, 4, 4);
    const std::int64_t numbers = 64 * 32 + 128;
    EXPECT_EQ(bytes_of(average_hook()), bytes_of_sum(group, numbers, 4) + status);
    EXPECT_EQ(bytes_of(bf16_compression()), bytes_of_sum(group, numbers, 2) + status);
    EXPECT_EQ(bytes_of(fp16_compression()), bytes_of_sum(group, numbers, 2) + status);
  });
}

TEST_P(Hooks, HalfIsDividedBeforeItIsAdded) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table({{3}}, at::kFloat);
    DistributedDataParallel ddp(table, group, hook_options(fp16_compression()));
    table->loss({at::full({3}, 40000.0)}).backward();
    EXPECT_LT(largest_difference(table->weights[0].grad(), at::full({3}, 40000.0)), 100);
  });
}

TEST_P(Hooks, AFunctionSeesEveryParameterOnceAndComposes) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table(hook_shapes, at::kDouble);
    std::set<std::string> names;
    int last = -1, second_steps = 0;
    auto own = hook_of("twice", [&](const GradientBucket& bucket, Group& ranks) -> BucketFuture {
      EXPECT_EQ(bucket.number(), last + 1);
      last = bucket.is_last() ? -1 : bucket.number();
      EXPECT_EQ(bucket.buffer().scalar_type(), at::kBFloat16);
      for (int i = 0; i < bucket.size(); ++i) {
        EXPECT_TRUE(names.insert(bucket.parameter(i).name).second);
        EXPECT_EQ(bucket.gradient(i).sizes(), bucket.parameter(i).tensor.sizes());
        EXPECT_TRUE(bucket.gradient(i).is_alias_of(bucket.buffer()));
      }
      return average_of(bucket, ranks).then([&](const at::Tensor& averages) -> BucketFuture {
        ++second_steps;
        return averages * 2;
      });
    });
    DistributedDataParallel ddp(table, group, hook_options(bf16_compression(own)));
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      names.clear();
      backward(ddp, *table, step);
      EXPECT_EQ(names.size(), hook_shapes.size());
      at::Tensor sum = at::zeros_like(table->weights[0]);
      for (int rank = 0; rank < group.size(); ++rank) sum += gradients_for(*table, rank, step)[0];
      EXPECT_LT(largest_difference(table->weights[0].grad(), sum * 2 / group.size()), 2e-2);
    }
    EXPECT_EQ(second_steps, 9);
  });
}

// Only one rank returns another shape: the other ranks would continue with other calls.
TEST_P(Hooks, AnotherShapeIsNamedOnAllRanks) {
  for (bool is_narrow : {true, false})
    for (int good_steps : {0, 2})
      run_group(GetParam().backend, GetParam().size, [&](Group group) {
        Table table(hook_shapes, at::kFloat);
        const bool fails = group.rank() == group.size() - 1;
        int step = 0;
        auto own = hook_of("narrow", [&](const GradientBucket& bucket, Group& ranks) {
          return average_of(bucket, ranks).then([&](const at::Tensor& averages) -> BucketFuture {
            if (!fails || step < good_steps) return averages;
            return is_narrow ? averages.narrow(0, 0, 3) : averages.to(at::kDouble);
          });
        });
        DistributedDataParallel ddp(table, group, hook_options(own, 1 << 20));
        for (; step < good_steps; ++step) {
          backward(ddp, *table, step);
          ddp.zero_grad();
        }
        // The other ranks may already have their averages, and then get the error in the next step.
        auto steps = [&] {
          for (; step < good_steps + 2; ++step) {
            backward(ddp, *table, step);
            ddp.zero_grad();
          }
        };
        std::string text = fails ? message_of<ReductionFailed>(steps) : message_of<Aborted>(steps);
        expect_contains(text, "communication hook narrow: expected Float of shape [");
        expect_contains(text, "for bucket 0 (");
        expect_contains(text, is_narrow ? "found Float of shape [3]" : "found Double of shape [");
        EXPECT_LE(step, good_steps + (fails ? 0 : 1));
      });
}

TEST_P(Hooks, AFailedBackwardLeavesLaterStepsOut) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    Table table({{8, 6}, {7, 9}, {3}}, at::kDouble);
    Table twin({{8, 6}, {7, 9}, {3}}, at::kDouble);
    PowerSgdOptions options{.rank = 1, .start_step = 0, .min_compression_rate = 1};
    auto hook = power_sgd(options), twins = power_sgd(options);
    DistributedDataParallel ddp(table, group, hook_options(hook));
    DistributedDataParallel twin_ddp(twin, group, hook_options(twins));
    auto throws = [&] {
      at::Tensor leaf = at::ones({}, at::kDouble).requires_grad_();
      at::Tensor factor = leaf * 2;
      factor.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
      (table->loss(gradients_for(*table, 0, 0)) + table->weights[0].sum() * factor).backward();
    };
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      twin_ddp.zero_grad();
      backward(ddp, *table, step);
      backward(twin_ddp, *twin, step);
      EXPECT_TRUE(same_bits(table->weights[1].grad(), twin->weights[1].grad()));
      auto state = hook->state(), twin_state = twins->state();
      for (const auto& [name, tensor] : twin_state)
        if (name != "step") EXPECT_TRUE(same_bits(state.at(name), tensor)) << name;
      if (step != 1) continue;
      ddp.zero_grad();
      if (group.rank() == group.size() - 1) {
        EXPECT_THROW(throws(), std::runtime_error);
      } else {
        EXPECT_THROW(backward(ddp, *table, 9), ReductionFailed);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Hooks, testing::ValuesIn(usual_ranks()), name_of_ranks);

TEST(HookErrors, AnExceptionOfOneRanksHookEndsTheGroupByName) {
  run_as_threads(3, [](Group group) {
    Table table(hook_shapes, at::kFloat);
    auto own = hook_of("mine", [](const GradientBucket& bucket, Group& ranks) {
      if (ranks.rank() == 1) throw std::runtime_error("no more memory");
      return average_of(bucket, ranks);
    });
    DistributedDataParallel ddp(table, group, hook_options(own));
    if (group.rank() == 1) {
      EXPECT_THROW(backward(ddp, *table, 0), std::runtime_error);
    } else {
      std::string text = message_of<Aborted>([&] { backward(ddp, *table, 0); });
      expect_contains(text, "communication hook mine failed for bucket 0 (");
      expect_contains(text, "no more memory");
    }
  });
}

// The deadline for a missing peer is the handle's, not the group's.
TEST(HookErrors, CallsHaveTheDeadlineOfTheHandle) {
  using std::chrono::milliseconds;
  for (const auto& hook_of_rank :
       {std::function([] { return bf16_compression(); }), std::function([] {
          return power_sgd({.rank = 1, .start_step = 0, .min_compression_rate = 1});
        })})
    run_as_threads(2, [&](Group group) {
      Table table({{40, 30}, {7}}, at::kFloat);
      DistributedDataParallel ddp(table, group,
                                  {.hook = hook_of_rank(), .timeout = milliseconds(300)});
      if (!group.is_root()) {
        std::this_thread::sleep_for(milliseconds(2000));
        return;
      }
      const auto began = std::chrono::steady_clock::now();
      EXPECT_THROW(backward(ddp, *table, 0), Error);
      EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1800));
    });
}

TEST(HookErrors, RanksWithOtherHooksAreTold) {
  run_as_threads(2, [](Group group) {
    Table table(hook_shapes, at::kFloat);
    auto hook = group.is_root() ? bf16_compression() : fp16_compression();
    std::string text = message_of<Mismatch>(
        [&] { DistributedDataParallel ddp(table, group, hook_options(hook)); });
    expect_contains(text, "option hook = ");
  });
}

struct RefusesEqualModels final : CommunicationHook {
  [[nodiscard]] std::string describe() const override { return "refuses"; }
  [[nodiscard]] BucketFuture run(const GradientBucket& bucket, Group& group) override {
    return average_of(bucket, group);
  }
  void models_are_equal(const Group&) override { throw std::runtime_error("of the hook"); }
};

TEST(HookErrors, AnExceptionAtTheEndOfALoadIsTheCallers) {
  run_as_threads(2, [](Group group) {
    Table table(hook_shapes, at::kFloat);
    DistributedDataParallel ddp(table, group, hook_options(std::make_shared<RefusesEqualModels>()));
    const auto state = ddp.state_dict();
    EXPECT_EQ(message_of<std::runtime_error>([&] { ddp.load_state_dict(state); }), "of the hook");
    backward(ddp, *table, 0);
    EXPECT_EQ(message_of<std::logic_error>([&] {
                const LoadScope scope = ddp.loading();
                throw std::logic_error("of the caller");
              }),
              "of the caller");
  });
}

TEST(HookErrors, RefusesAnEmptyFunctionAndStateOfNobody) {
  EXPECT_THROW((void)hook_of("empty", nullptr), InvalidArgument);
  EXPECT_THROW((void)bf16_compression(nullptr), InvalidArgument);
  EXPECT_THROW(average_hook()->load_state({{"a", at::ones({1})}}), BadInput);
}

}  // namespace
}  // namespace lockstep
