// Slices and their gradients are marked as parts. For any list of parameters, norms and overflow
// checks cover all ranks; an operation whose result would depend on this rank's elements only
// throws an error that names the parameter.
#include "parallel/sharded/pair.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/decay.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>

#include <torch/nn/modules/activation.h>
#include <torch/optim/lbfgs.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

using namespace test;

class ShardedSlices : public OnEveryLevel {};

void backward_of_both(Pair& pair, int batch = 1) {
  (pair.model->forward(Pair::input(batch)).square().sum() * 3).backward();
  (pair.plain->forward(Pair::input(batch)).square().sum() * 3).backward();
}

double true_norm(Pair& pair, double norm_type = 2) {
  return optim::gradient_norm(pair.plain->parameters(), norm_type);
}

// Operations by which an optimizer or a loop may mix the elements of a slice.
std::vector<std::function<void(const at::Tensor&)>> ways_of_mixing() {
  return {
      [](auto& p) { (void)p.grad().norm(); },  // a norm by hand
      [](auto& p) { (void)p.grad().detach().data().norm(2); },
      [](auto& p) { (void)p.grad().square().sum(); },
      [](auto& p) { (void)p.grad().to(at::kDouble).pow(2).sum(); },
      [](auto& p) { (void)p.grad().abs().max(); },
      [](auto& p) { (void)p.detach().norm().div(p.grad().norm()); },  // LAMB
      [](auto& p) { (void)p.grad().pow(2).mean(-1); },                // Adafactor
      [](auto& p) {
        (void)at::mm(p.grad().view({1, -1}), p.grad().view({-1, 1}));
      },                                                    // Muon
      [](auto& p) { (void)at::cat({p.grad().view(-1)}); },  // LBFGS
      [](auto& p) { (void)p.grad().isfinite().all(); },
      [](auto& p) { (void)p.detach().isnan().any(); },
      [](auto& p) { (void)p.sum(); },  // a penalty
  };
}

TEST_P(ShardedSlices, ElementsAreNotMixedOnSeveralRanks) {
  for (bool narrow : {false, true}) {
    ShardOptions options;
    if (narrow) options.reduce_dtype = at::kBFloat16;
    run(
        [](Pair& pair, Group group) {
          for (int backwards : {1, 2}) {  // averages of the first are moved for the second
            for (int i = 0; i < backwards; ++i) backward_of_both(pair, i);
            auto before = gradients_of(pair.sharded->parameters());
            for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
                 pair.sharded->named_parameters()) {
              for (const auto& mix : ways_of_mixing()) {
                if (group.size() == 1) continue;
                auto text = message_of<InvalidArgument>([&, tensor = tensor] { mix(tensor); });
                expect_words(text, {name + " is divided over 3 ranks", "clip_grad_norm()"});
              }
            }
            auto after = gradients_of(pair.sharded->parameters());
            for (std::size_t i = 0; i < after.size(); ++i)
              EXPECT_TRUE(same_bits(before[i], after[i]));
            pair.sharded->zero_grad();
          }
        },
        options);
  }
}

TEST_P(ShardedSlices, LbfgsIsRefusedOnSeveralRanksAndWorksOnOne) {
  run([](Pair& pair, Group group) {
    torch::optim::LBFGS lbfgs(pair.sharded->parameters(), torch::optim::LBFGSOptions(0.1));
    auto closure = [&] {
      pair.sharded->zero_grad();
      at::Tensor loss = pair.model->forward(Pair::input()).square().sum();
      loss.backward();
      return loss;
    };
    if (group.size() > 1) {
      auto text = message_of<InvalidArgument>([&] { lbfgs.step(closure); });
      expect_words(text, {"cat", "0.weight is divided over 3 ranks"});
      return;
    }
    double first = closure().item<double>();
    lbfgs.step(closure);
    EXPECT_LT(closure().item<double>(), 0.9 * first);
  });
}

TEST_P(ShardedSlices, TheRecordSurvivesWhatUsersDo) {
  run([](Pair& pair, Group group) {
    backward_of_both(pair);
    std::vector<at::Tensor> detached, replaced;
    for (const at::Tensor& slice : pair.sharded->parameters()) {
      detached.push_back(slice.detach());
      detached.back().mutable_grad() = slice.grad();
      replaced.push_back(slice);
    }
    at::Tensor first = replaced[0];
    std::vector<at::Tensor> rest(replaced.begin() + 1, replaced.end());
    torch::optim::AdamW grouped(
        std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup({first}),
                                                       torch::optim::OptimizerParamGroup(rest)},
        torch::optim::AdamWOptions(0.1));
    double expected = true_norm(pair);
    EXPECT_NEAR(optim::gradient_norm(detached), expected, 1e-6 * expected);
    optim::GradScaler off({.enabled = false});
    double norm = off.step(grouped, {.clip_norm = 1e9}).norm.value();
    EXPECT_NEAR(norm, expected, 1e-6 * expected);
    // A gradient that the user assigns is a part as well.
    for (const at::Tensor& slice : replaced) slice.mutable_grad() = slice.grad().clone().mul_(2);
    EXPECT_NEAR(optim::gradient_norm(replaced), 2 * expected, 2e-6 * expected);
    if (group.size() == 1) return;
    EXPECT_THROW((void)(replaced[0].detach() * 2).norm(), InvalidArgument);
    at::Tensor mine = replaced[0].detach().clone();  // on purpose
    EXPECT_GE(mine.norm().item<double>(), 0);
  });
}

TEST_P(ShardedSlices, TheRecordOutlivesTheHandle) {
  run([](Pair& pair, Group) {
    backward_of_both(pair);
    auto slices = pair.sharded->parameters();
    double expected = true_norm(pair);
    pair.sharded.reset();
    EXPECT_NEAR(optim::gradient_norm(slices), expected, 1e-6 * expected);
  });
}

// One optimizer has slices of two handles and a parameter that is whole on every rank.
TEST_P(ShardedSlices, EachDivisionIsCombinedOnce) {
  run([](Pair& pair, Group group) {
    Pair other(group, {.units = {"0"}});
    torch::nn::Linear whole(3, 2);
    fill_parameters(*whole, 9);
    backward_of_both(pair, 1);
    backward_of_both(other, 2);
    whole->forward(values({2, 3}, 1)).square().sum().backward();
    for (double norm_type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
      std::vector<at::Tensor> mine, plain;
      auto append = [](std::vector<at::Tensor>& to, const std::vector<at::Tensor>& more) {
        to.insert(to.end(), more.begin(), more.end());
      };
      append(mine, pair.sharded->parameters());
      append(mine, whole->parameters());
      append(mine, other.sharded->parameters());
      append(plain, pair.plain->parameters());
      append(plain, whole->parameters());
      append(plain, other.plain->parameters());
      double expected = optim::gradient_norm(plain, norm_type);
      EXPECT_NEAR(optim::gradient_norm(mine, norm_type), expected, 1e-6 * expected);
    }
    // An overflow in one rank's slice counts as an overflow on all ranks.
    std::vector<at::Tensor> all = pair.sharded->parameters();
    for (const at::Tensor& slice : other.sharded->parameters()) all.push_back(slice);
    at::Tensor last = all.back();
    if (last.numel() > 0) last.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    optim::SGD sgd(all, torch::optim::SGDOptions(0.1));
    optim::GradScaler scaler;
    EXPECT_FALSE(scaler.unscale(sgd));
    EXPECT_FALSE(scaler.step(sgd));
  });
}

// Slices have one dimension.
TEST_P(ShardedSlices, WeightDecayGoesByTheShapesOfTheWhole) {
  run([](Pair& pair, Group) {
    auto groups =
        optim::decay_groups(pair.sharded->named_parameters(), torch::optim::AdamWOptions(0.1), 0.5);
    std::vector<std::string> decayed;
    for (const auto& [name, tensor, aliases, slice, kind, shard_group, offset] :
         pair.sharded->named_parameters())
      for (const at::Tensor& one : groups[0].params())
        if (one.is_same(tensor)) decayed.push_back(name);
    EXPECT_EQ(decayed, (std::vector<std::string>{"0.weight", "1.weight"}));
    EXPECT_EQ(groups[0].params().size() + groups[1].params().size(),
              pair.sharded->parameters().size());
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, ShardedSlices, every_level(), name_of_level);

// Copies of a shard are counted once.
TEST(ShardedSlicesOnTwoAxes, NormsAreThoseOfOneCopy) {
  run_as_threads(4, [](Group group) {
    Mesh mesh(group, {{"dp", 2}, {"fsdp", 2}});
    torch::nn::Linear model(7, 5), plain(7, 5);
    for (auto* net : {&model, &plain}) fill_parameters(**net, 2);
    auto sharded = fully_shard(model, mesh);
    for (auto* net : {&model, &plain}) (*net)->forward(values({4, 7}, 1)).square().sum().backward();
    double expected = optim::gradient_norm(plain->parameters());
    optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.1));
    EXPECT_NEAR(adamw.step_transformed({.clip_norm = 1}).norm.value(), expected, 1e-6 * expected);
    EXPECT_THROW((void)sharded.parameters()[0].grad().norm(), InvalidArgument);
    EXPECT_NEAR(sharded.clip_grad_norm(1), expected, 1e-6 * expected);
  });
}

// AdamW that clips first.
class ClippedAdamW final : public optim::AdamW {
 public:
  using optim::AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override {
    EXPECT_GT(optim::clip_grad_norm(param_groups()[0].params(), 0.02), 0.02);
    return optim::AdamW::step(closure);
  }
};

// The norm is float64, so the order in which ranks' parts are added does not reach the factor.
TEST(ShardedClipping, HasTheBitsOfOneProcess) {
  MakeOptimizer clipped = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<ClippedAdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
  };
  for (const Problem& problem : problems())
    for (int ranks : {1, 2, 3, 5}) {
      History expected = one_process(problem, clipped, ranks, 4);
      for (ShardLevel level : all_levels)
        for (ShardStorage storage : all_storages)
          run_as_threads(ranks, [&](Group group) {
            expect_same_history(expected, problem, group, {.level = level, .storage = storage},
                                clipped);
          });
    }
}

}  // namespace
}  // namespace lockstep
