// Shards in float32 and computation in 16 bits give the results of one process with float32
// masters.
#include "dispatch/lazy_storage.h"
#include "parallel/sharded/support.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>

#include <algorithm>

namespace lockstep {
namespace {

using namespace test;

torch::nn::Sequential small_model() {
  torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Linear(9, 4));
  fill_parameters(*model, 3);
  return model;
}

at::Tensor loss_in(torch::nn::Sequential& model, int batch, at::ScalarType dtype) {
  return torch::relu(model->forward(values({5, 6}, batch).to(dtype))).square().sum();
}

// Returns the masters after `steps` steps of one process. Gradients of every rank's batch are
// computed in `dtype`, summed in float32 in the order of the tree, divided once, and rounded to
// `reduce`.
std::vector<at::Tensor> one_process(int ranks, int steps, at::ScalarType dtype,
                                    at::ScalarType reduce, const MakeOptimizer& make_optimizer) {
  at::set_num_threads(1);
  auto model = small_model();
  std::vector<at::Tensor> masters;
  for (auto& parameter : model->parameters())
    masters.push_back(parameter.detach().clone().requires_grad_());
  auto optimizer = make_optimizer(masters);
  model->to(dtype);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      model->zero_grad();
      loss_in(model, step * ranks + rank, dtype).backward();
      of_ranks.emplace_back();
      for (auto& parameter : model->parameters())
        of_ranks.back().push_back(parameter.grad().to(at::kFloat));
    }
    auto averages = average(of_ranks);
    for (std::size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = averages[i].to(reduce).to(at::kFloat);
    optimizer->step();
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) model->parameters()[i].copy_(masters[i]);
  }
  return masters;
}

MakeOptimizer our_adamw() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
  };
}

MakeOptimizer our_momentum() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

class ShardedMixedPrecision : public testing::TestWithParam<at::ScalarType> {};

// Runs one rank of a sharded run, and compares every parameter at its end.
void expect_same_masters(const std::vector<at::Tensor>& expected, Group group,
                         const ShardOptions& options, const MakeOptimizer& make_optimizer) {
  auto model = small_model();
  auto sharded = fully_shard(model, group, options);
  EXPECT_EQ(model->parameters()[0].scalar_type(), options.compute_dtype);
  EXPECT_EQ(sharded.parameters()[0].scalar_type(), at::kFloat);
  auto optimizer = make_optimizer(sharded.parameters());
  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    loss_in(model, step * group.size() + group.rank(), *options.compute_dtype).backward();
    optimizer->step();
  }
  auto found = sharded.state_dict();
  auto names = model->named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(same_bits(found.at(names[i].key()), expected[i]))
        << names[i].key() << ", " << name_of(options.level) << ", " << group.size()
        << " ranks, reduced in " << c10::toString(*options.reduce_dtype);
}

TEST_P(ShardedMixedPrecision, EqualsOneProcessWithFloatMasters) {
  for (const MakeOptimizer& make : {momentum(), our_momentum(), our_adamw()})
    for (int ranks : {1, 2, 3})
      for (at::ScalarType reduce : {at::kFloat, GetParam()}) {
        auto expected = one_process(ranks, 3, GetParam(), reduce, make);
        for (ShardLevel level : all_levels)
          run_as_threads(ranks, [&](Group group) {
            expect_same_masters(expected, group,
                                {.units = {"*"},
                                 .level = level,
                                 .compute_dtype = GetParam(),
                                 .reduce_dtype = reduce},
                                make);
          });
      }
}

// A model whose averages stay in 16 bits until they are used; widen() converts them to float32 at
// once.
struct Widened {
  Widened(Group group, ShardLevel level, at::ScalarType dtype)
      : sharded(
            fully_shard(model, group, {.units = {"*"}, .level = level, .compute_dtype = dtype})),
        adamw(our_adamw()(sharded.parameters())) {}

  void backward(int batch, double factor = 1) {
    (loss_in(model, batch, sharded_dtype()) * factor).backward();
  }
  at::ScalarType sharded_dtype() { return model->parameters()[0].scalar_type(); }
  // Uses the gradients as an optimizer of LibTorch would, which widens them.
  void widen() {
    for (const at::Tensor& slice : sharded.parameters()) (void)slice.grad().add(slice.detach());
  }
  [[nodiscard]] bool is_wide() const {
    return std::ranges::all_of(sharded.parameters(), [](const at::Tensor& slice) {
      return slice.numel() == 0 || dispatch::has_memory(slice.grad());
    });
  }

  torch::nn::Sequential model = small_model();
  ShardedModule sharded;
  std::unique_ptr<torch::optim::Optimizer> adamw;
};

// Makes the same steps with gradients kept in 16 bits and widened to float32; the results must be
// equal.
void expect_equal_runs(at::ScalarType dtype,
                       const std::function<void(Widened&, Group, bool widen)>& run) {
  for (ShardLevel level : all_levels)
    for (int ranks : {1, 3})
      run_as_threads(ranks, [&](Group group) {
        Widened narrow(group, level, dtype), wide(group, level, dtype);
        run(narrow, group, false);
        run(wide, group, true);
        auto expected = wide.sharded.state_dict();
        for (const auto& [name, value] : narrow.sharded.state_dict())
          EXPECT_TRUE(same_bits(value, expected.at(name))) << name << ", " << name_of(level);
      });
}

TEST_P(ShardedMixedPrecision, StepsAndNormsReadAveragesInSixteenBits) {
  expect_equal_runs(GetParam(), [](Widened& one, Group group, bool widen) {
    for (int batch = 0; batch < 3; ++batch) {
      one.backward(batch + group.rank());
      if (widen) one.widen();
      auto& ours = dynamic_cast<optim::AdamW&>(*one.adamw);
      EXPECT_GT(ours.step_transformed({.clip_norm = 0.5}).norm.value(), 0.5);
      EXPECT_EQ(one.is_wide(), widen);
      one.sharded.zero_grad();
    }
  });
}

TEST_P(ShardedMixedPrecision, ALossScalerReadsAveragesInSixteenBits) {
  expect_equal_runs(GetParam(), [](Widened& one, Group group, bool widen) {
    optim::GradScaler scaler({.initial_scale = 64});
    for (double factor : {1.0, 1e38, 1.0}) {
      scaler.scale(loss_in(one.model, group.rank(), one.sharded_dtype()) * factor).backward();
      if (widen && factor == 1) one.widen();
      bool stepped = scaler.step(*one.adamw).stepped;
      EXPECT_EQ(stepped, factor == 1);
      if (!widen) EXPECT_FALSE(one.is_wide());
      scaler.update();
      one.sharded.zero_grad();
    }
  });
}

// Sums of several averages are computed in float32.
TEST_P(ShardedMixedPrecision, SeveralBackwardsBeforeAStepAddInFloat) {
  expect_equal_runs(GetParam(), [](Widened& one, Group group, bool widen) {
    for (int batch = 0; batch < 2; ++batch) {
      one.backward(batch + group.rank());
      if (widen) one.widen();
      one.backward(batch + 7 * group.rank());
      one.adamw->step();
      if (batch == 0) one.adamw->zero_grad();
      if (batch == 1) one.sharded.zero_grad(/*set_to_none=*/false);
    }
    one.backward(group.rank());
    one.adamw->step();
  });
}

TEST_P(ShardedMixedPrecision, BackwardsInsideNoSyncAddInFloat) {
  for (ShardLevel level : all_levels)
    run_as_threads(2, [&](Group group) {
      torch::nn::Linear one(torch::nn::LinearOptions(1, 1).bias(false));
      auto sharded = fully_shard(
          one, group, {.level = level, .compute_dtype = GetParam(), .reduce_dtype = at::kFloat});
      constexpr double small = 1.0 / 4096;  // 1 + small is 1 in 16 bits
      const auto add = [&](double gradient) { (one->weight.sum() * gradient).backward(); };
      {
        auto scope = sharded.no_sync();
        add(1);
        for (int i = 0; i < 7; ++i) add(small);
      }
      add(small);
      EXPECT_EQ(one->weight.scalar_type(), GetParam());
      const at::Tensor average = sharded.parameters()[0].grad();
      if (average.numel() == 1)
        EXPECT_EQ(average.clone()[0].item<float>(), 1 + 8 * small) << name_of(level);
    });
}

TEST(ShardedHalf, DoesNotOverflowOnTwoAxes) {
  for (ShardLevel level : all_levels)
    run_as_threads(4, [&](Group group) {
      torch::nn::Linear one(torch::nn::LinearOptions(1, 1).bias(false));
      auto sharded = fully_shard(one, Mesh(group, {{"dp", 2}, {"fsdp", 2}}),
                                 {.level = level, .compute_dtype = at::kHalf});
      constexpr double large = 40000;
      (one->weight.sum() * large).backward();
      const at::Tensor average = sharded.parameters()[0].grad();
      if (average.numel() == 1)
        EXPECT_EQ(average.clone()[0].item<float>(), large) << name_of(level);
    });
}

TEST_P(ShardedMixedPrecision, AGradientThatIsHeldKeepsItsValues) {
  for (ShardLevel level : all_levels)
    run_as_threads(2, [&](Group group) {
      Widened one(group, level, GetParam());
      one.backward(group.rank());
      std::vector<at::Tensor> held, values;
      for (const at::Tensor& slice : one.sharded.parameters()) {
        held.push_back(slice.grad());
        values.push_back(slice.grad().clone());
      }
      one.sharded.zero_grad();
      one.backward(5 + group.rank());
      held.push_back(one.sharded.parameters().front().grad());
      one.adamw->zero_grad();
      one.backward(9 + group.rank());
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(same_bits(held[i], values[i])) << i << ", " << name_of(level);
      at::Tensor now = one.sharded.parameters().front().grad();
      EXPECT_EQ(at::equal(held.back(), now), now.numel() == 0);
    });
}

// Every rank computes on the same batch, so the averages equal the gradients of one process. On the
// CPU, LibTorch's batch normalization of 16-bit numbers requires float32 parameters.
TEST_P(ShardedMixedPrecision, AUnitMayComputeInADtypeOfItsOwn) {
  auto made = [] {
    torch::nn::Sequential net(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5),
                              torch::nn::Linear(5, 4));
    fill_parameters(*net, 3);
    return net;
  };
  for (ShardStorage storage : all_storages)
    for (ShardLevel level : all_levels)
      run_as_threads(3, [&](Group group) {
        auto plain = made(), model = made();
        for (int i : {0, 2}) plain->ptr(static_cast<std::size_t>(i))->to(GetParam());
        auto sharded = fully_shard(model, group,
                                   {.units = {{"1", std::nullopt, at::kFloat}, "*"},
                                    .level = level,
                                    .storage = storage,
                                    .compute_dtype = GetParam()});
        EXPECT_EQ(model->parameters()[0].scalar_type(), GetParam());
        EXPECT_EQ(model[1]->as<torch::nn::BatchNorm1d>()->weight.scalar_type(), at::kFloat);
        at::Tensor loss = loss_in(model, 1, GetParam()), expected = loss_in(plain, 1, GetParam());
        EXPECT_TRUE(same_bits(loss, expected)) << name_of(level) << ", " << name_of(storage);
        loss.backward();
        expected.backward();
        auto named = plain->named_parameters();
        for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
             sharded.named_parameters()) {
          at::Tensor gradient =
              named[name].grad().view({-1}).narrow(0, slice.range.begin, slice.range.length());
          EXPECT_EQ(tensor.scalar_type(), at::kFloat);
          EXPECT_TRUE(at::allclose(tensor.grad(), gradient.to(at::kFloat), 1e-6, 0)) << name;
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ShardedMixedPrecision, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(ShardedMixedPrecisionWrites, KeepTheDigitsOfWhatWasNotWritten) {
  for (ShardLevel level : all_levels)
    run_as_threads(2, [&](Group group) {
      torch::nn::Linear model(3, 4);
      fill_parameters(*model, 3);
      at::Tensor before = model->weight.detach() + 1e-4;
      {
        torch::NoGradGuard no_grad;
        model->weight.copy_(before);
      }
      auto sharded = fully_shard(model, group, {.level = level, .compute_dtype = at::kBFloat16});
      {
        torch::NoGradGuard no_grad;
        model->weight.narrow(0, 1, 1).fill_(0.5);
      }
      at::Tensor expected = before.clone();
      expected[1].fill_(0.5);
      EXPECT_TRUE(same_bits(sharded.state_dict().at("weight"), expected));
    });
}

// |z|^2 has the gradient 2 z.
TEST(ShardedMixedPrecisionOfComplexNumbers, LeavesThemAsTheyAre) {
  for (ShardLevel level : all_levels)
    run_as_threads(3, [&](Group group) {
      torch::nn::Module model;
      at::Tensor z = at::complex(values({5}, 1), values({5}, 2));
      at::Tensor parameter = model.register_parameter("z", z.clone());
      auto sharded = fully_shard(
          model, group,
          {.level = level, .compute_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16});
      parameter.abs().square().sum().backward();
      const auto [name, tensor, aliases, slice, kind, shard_group, offset] =
          sharded.named_parameters().front();
      EXPECT_EQ(tensor.grad().scalar_type(), at::kComplexFloat);
      at::Tensor expected = 2 * z.narrow(0, slice.range.begin, slice.range.length());
      EXPECT_TRUE(at::allclose(tensor.grad(), expected, 1e-6, 1e-7)) << name_of(level);
    });
}

}  // namespace
}  // namespace lockstep
