// Optimizers whose update the ranks of a host divide (Handle::shared_update()): everything that can
// be seen is what it is without that, bit for bit.
#include "optim/shared_update.h"

#include "parallel/data/hook_support.h"

#include <lockstep/optim/adam.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/join.h>

#include <cstdlib>
#include <sstream>

namespace lockstep {
namespace {

using namespace test;
using optim::StateFormat;
using optim::UpdateOptions;
using torch::optim::Optimizer;

// In this order: divided, with a rest of a block; each rank's own; divided.
const std::vector<std::vector<std::int64_t>> shared_shapes = {{131, 257}, {5}, {130, 130}, {7, 3}};

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>, UpdateOptions)>;

template <class Ours, class Options>
Make maker(Options options) {
  return [options](std::vector<at::Tensor> parameters, UpdateOptions update) {
    return std::make_unique<Ours>(std::move(parameters), options, std::move(update));
  };
}

Make adamw() { return maker<optim::AdamW>(torch::optim::AdamWOptions(0.01)); }
Make momentum() { return maker<optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9)); }

// A model and its optimizer, with and without the division.
struct Trained {
  Trained(const Group& group, const Make& make, bool is_shared, UpdateOptions update = {},
          at::ScalarType dtype = at::kFloat)
      : table(shared_shapes, dtype), ddp(table, group) {
    if (is_shared) update.shared = ddp.shared_update();
    optimizer = make(ddp.parameters(), update);
  }
  void backward(int step) {
    ddp.zero_grad();
    test::backward(ddp, *table, step);
  }
  void step(int number) {
    backward(number);
    optimizer->step();
  }

  Table table;
  DistributedDataParallel ddp;
  std::unique_ptr<Optimizer> optimizer;
};

std::string archive_of(const Optimizer& optimizer) {
  std::stringstream stream;
  torch::save(optimizer, stream);
  return stream.str();
}

// Names and bits of all that the optimizer keeps, as its archive has them.
std::vector<std::pair<std::string, at::Tensor>> state_of(Optimizer& optimizer) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) {
      auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const auto* state = dynamic_cast<const optim::ExtraState*>(found->second.get());
      for (const auto& [name, tensor] : state->plain_fields()) all.emplace_back(name, tensor);
    }
  return all;
}

void expect_same(Trained& found, Trained& expected, const std::string& where) {
  for (std::size_t i = 0; i < shared_shapes.size(); ++i) {
    EXPECT_TRUE(same_bits(found.table->weights[i], expected.table->weights[i]))
        << where << " " << i;
    const at::Tensor &a = found.table->weights[i].grad(), &b = expected.table->weights[i].grad();
    EXPECT_EQ(a.defined(), b.defined()) << where << " gradient " << i;
    if (a.defined() && b.defined()) EXPECT_TRUE(same_bits(a, b)) << where << " gradient " << i;
  }
  auto a = state_of(*found.optimizer), b = state_of(*expected.optimizer);
  ASSERT_EQ(a.size(), b.size()) << where;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first) << where;
    EXPECT_TRUE(same_bits(a[i].second, b[i].second)) << where << " " << i << " " << a[i].first;
  }
}

class SharedUpdates : public testing::TestWithParam<Ranks> {};

TEST_P(SharedUpdates, AreThoseOfEachRankBitForBit) {
  auto amsgrad = torch::optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1);
  struct Case {
    Make make;
    UpdateOptions update = {};
    at::ScalarType dtype = at::kFloat;
  };
  const std::vector<Case> cases = {{adamw()},
                                   {maker<optim::Adam>(amsgrad), {.maximize = true}},
                                   {momentum()},
                                   {maker<optim::SGD>(torch::optim::SGDOptions(0.1))},
                                   {adamw(), {.state = StateFormat::bfloat16, .seed = 7}},
                                   {adamw(), {.state = StateFormat::blockwise}},
                                   {momentum(), {.state = StateFormat::blockwise}},
                                   {adamw(), {}, at::kBFloat16},
                                   {adamw(), {}, at::kDouble}};
  run_group(GetParam().engine, GetParam().size, [&](Group group) {
    int number = 0;
    for (const auto& [make, update, dtype] : cases) {
      Trained found(group, make, true, update, dtype), expected(group, make, false, update, dtype);
      for (int step = 0; step < 3; ++step) {
        for (Trained* one : {&found, &expected}) {
          for (auto& parameters : one->optimizer->param_groups())
            parameters.options().set_lr(0.01 / (1 + step));
          one->step(step);
        }
        expect_same(found, expected,
                    "case " + std::to_string(number) + ", step " + std::to_string(step));
      }
      ++number;
    }
  });
}

TEST_P(SharedUpdates, LieOnceForAllRanks) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, adamw(), true);
    found.step(0);
    auto* adam = dynamic_cast<optim::AdamW*>(found.optimizer.get());
    std::int64_t divided = 0, whole = 0;
    for (const at::Tensor& weight : found.table->weights)
      (weight.numel() >= 16384 ? divided : whole) += weight.numel();
    double share = static_cast<double>(divided) / group.size() + static_cast<double>(whole);
    EXPECT_NEAR(static_cast<double>(adam->bytes_moved()), 28 * share, 28 * 8 * 256);
    if (group.size() == 1) {
      EXPECT_EQ(found.ddp.shared_update(), nullptr);
    }
  });
}

// Clipped, scaled, skipped, in one pass or not, with other parameters in another optimizer.
TEST_P(SharedUpdates, AreTransformedAndSkippedAlike) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, adamw(), true), expected(group, adamw(), false);
    for (Trained* one : {&found, &expected}) {
      optim::GradScaler scaler({.initial_scale = 8});
      for (int step = 0; step < 4; ++step) {
        one->ddp.zero_grad();
        auto gradients = gradients_for(*one->table, group.rank(), step);
        if (step == 1 && group.is_root()) gradients[0].fill_(INFINITY);
        scaler.scale(one->table->loss(gradients)).backward();
        if (step == 2) {
          EXPECT_TRUE(scaler.unscale(*one->optimizer));
          (void)one->ddp.clip_grad_norm(0.5);
        }
        EXPECT_EQ(scaler.step(*one->optimizer, {.clip_norm = 1.0}).stepped, step != 1);
        scaler.update();
      }
    }
    expect_same(found, expected, "scaled");
  });
}

TEST_P(SharedUpdates, MayHaveSeveralOptimizersAndParametersInNone) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    auto train = [&](bool is_shared) {
      Table table(shared_shapes, at::kFloat);
      DistributedDataParallel ddp(table, group, {.find_unused_parameters = true});
      auto shared = is_shared ? ddp.shared_update() : nullptr;
      const auto& weights = table->weights;
      at::Tensor stranger = values({20000}, 3).requires_grad_();
      optim::AdamW first({weights[0]}, torch::optim::AdamWOptions(0.1), {.shared = shared});
      optim::SGD second({weights[1], stranger, weights[2]}, torch::optim::SGDOptions(0.1),
                        {.shared = shared});
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        auto gradients = gradients_for(*table, group.rank(), step);
        stranger.mutable_grad() = values({20000}, group.rank());
        auto used = step == 2 ? weights[2] * gradients[2] : weights[0] * gradients[0];
        (used.sum() + (weights[3] * gradients[3]).sum()).backward();
        second.step();
        if (step != 1) first.step();
      }
      std::vector<at::Tensor> all = ddp.parameters();
      all.push_back(stranger);
      return all;
    };
    auto found = train(true), expected = train(false);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
  });
}

// What is saved on any rank is all of it, and goes on elsewhere.
TEST_P(SharedUpdates, AreSavedAndLoaded) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, adamw(), true), expected(group, adamw(), false);
    for (Trained* one : {&found, &expected}) one->step(0);
    std::stringstream archive(archive_of(*found.optimizer));
    for (int step = 1; step < 3; ++step)
      for (Trained* one : {&found, &expected}) {
        archive.seekg(0);
        if (step == 1) torch::load(*one->optimizer, archive);
        one->step(step);
      }
    expect_same(found, expected, "loaded");
  });
}

TEST_P(SharedUpdates, GoOnWithRanksWithoutInputs) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, momentum(), true), expected(group, momentum(), false);
    for (Trained* one : {&found, &expected}) {
      Join join({&one->ddp.joinable()});
      for (int step = 0; step < 1 + group.rank(); ++step) one->step(step);
      join.finish([&] {
        one->optimizer->step();
        one->ddp.zero_grad();
      });
    }
    expect_same(found, expected, "joined");
  });
}

TEST_P(SharedUpdates, AccumulateInsideNoSync) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, adamw(), true), expected(group, adamw(), false);
    for (Trained* one : {&found, &expected}) {
      one->ddp.zero_grad();
      {
        auto scope = one->ddp.no_sync();
        backward(one->ddp, *one->table, 0);
      }
      if (one == &found && group.size() > 1)
        expect_contains(message_of<InvalidArgument>([&] { one->optimizer->step(); }),
                        "the last backward() was inside no_sync()");
      backward(one->ddp, *one->table, 1);
      one->optimizer->step();
    }
    expect_same(found, expected, "accumulated");
  });
}

INSTANTIATE_TEST_SUITE_P(Local, SharedUpdates,
                         testing::ValuesIn(ranks_of({Engine::local}, {1, 2, 3, 4, 5})),
                         name_of_ranks);
INSTANTIATE_TEST_SUITE_P(Shm, SharedUpdates, testing::ValuesIn(ranks_of({Engine::shm}, {2, 3})),
                         name_of_ranks);

class SharedUpdateErrors : public testing::TestWithParam<Ranks> {};

TEST_P(SharedUpdateErrors, OfAStateThatWasWrittenTo) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, adamw(), true);
    found.step(0);
    auto& state = *found.optimizer->state().at(found.table->weights[2].unsafeGetTensorImpl());
    auto& adam = dynamic_cast<torch::optim::AdamWParamState&>(state);
    found.backward(1);
    at::Tensor fresh = adam.exp_avg() * 0.5;
    group.barrier().wait();
    {
      at::NoGradGuard no_grad;
      adam.exp_avg().mul_(0.5);
    }
    std::string text = message_of<InvalidArgument>([&] { found.optimizer->step(); });
    expect_contains(text, "AdamW: the state of parameter 0 of group 0 was written to");
    group.barrier().wait();
  });
}

TEST_P(SharedUpdateErrors, OfRanksThatUpdateDifferently) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    Trained found(group, adamw(), true);
    found.step(0);
    found.backward(1);
    found.optimizer->param_groups()[0].options().set_lr(group.is_root() ? 0.5 : 0.25);
    std::string text = message_of<Mismatch>([&] { found.optimizer->step(); });
    expect_contains(text, "AdamW updates group 0: lr 0.5");
    expect_contains(text, "AdamW updates group 0: lr 0.25");
  });
}

TEST_P(SharedUpdateErrors, OfOptionsThatDoNotFit) {
  run_group(GetParam().engine, GetParam().size, [](Group group) {
    struct Nowhere final : optim::StateMemory {
      at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override {
        return at::zeros({count}, dtype);
      }
      [[nodiscard]] bool holds(const at::Tensor&) const override { return false; }
      void will_use(const at::Tensor&) noexcept override {}
      void has_used(const at::Tensor&) noexcept override {}
    };
    Trained found(group, adamw(), true);
    expect_contains(message_of<InvalidArgument>([&] {
                      optim::AdamW both(found.ddp.parameters(), {},
                                        {.memory = std::make_shared<Nowhere>(),
                                         .shared = found.ddp.shared_update()});
                    }),
                    "the state lies in `memory` or is shared by ranks (`shared`), not both");
    found.backward(0);
    { DistributedDataParallel gone = std::move(found.ddp); }
    expect_contains(message_of<InvalidArgument>([&] { found.optimizer->step(); }),
                    "the handle that averages their gradients has gone");
  });
}

INSTANTIATE_TEST_SUITE_P(All, SharedUpdateErrors,
                         testing::Values(Ranks{Engine::local, 3}, Ranks{Engine::shm, 2}),
                         name_of_ranks);

// An engine whose ranks share no memory: each updates all.
TEST(SharedUpdate, IsAbsentWhereRanksShareNoMemory) {
  if (!has(Engine::gloo)) GTEST_SKIP() << "no Gloo in this build";
  run_group(Engine::gloo, 2, [](Group group) {
    Trained found(group, adamw(), true), expected(group, adamw(), false);
    EXPECT_EQ(found.ddp.shared_update(), nullptr);
    for (int step = 0; step < 2; ++step)
      for (Trained* one : {&found, &expected}) one->step(step);
    expect_same(found, expected, "gloo");
  });
}

}  // namespace
}  // namespace lockstep
