// Training loops as users write them give one process's numbers, with every optimizer, under every
// strategy, without mentioning a group. A loop that is not supported throws an error that names the
// parameter.
//
// The oracle is one process with LibTorch's optimizers, its clip_grad_norm_(), and a loss scaler
// written out here.
#include "parallel/loops.h"

#include "parallel/sharded/support.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>

namespace lockstep {
namespace {

using namespace test;

constexpr double first_scale = 1024;

template <class Optimizer, class Options>
MakeOptimizer made_of(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

struct Kind {
  std::string name;
  MakeOptimizer make;
  MakeOptimizer oracle;
};

std::vector<Kind> kinds() {
  torch::optim::SGDOptions sgd(0.5);
  sgd.momentum(0.9).weight_decay(0.01);
  torch::optim::AdamOptions adam(0.01);
  adam.amsgrad(true).weight_decay(0.01);
  torch::optim::AdamWOptions adamw(0.01);
  torch::optim::RMSpropOptions rmsprop(0.01);
  rmsprop.momentum(0.5).weight_decay(0.01);
  auto torch_sgd = made_of<torch::optim::SGD>(sgd);
  auto torch_adam = made_of<torch::optim::Adam>(adam);
  auto torch_adamw = made_of<torch::optim::AdamW>(adamw);
  auto torch_rmsprop = made_of<torch::optim::RMSprop>(rmsprop);
  auto torch_adagrad = made_of<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05));
  return {{"optim::SGD", made_of<optim::SGD>(sgd), torch_sgd},
          {"optim::Adam", made_of<optim::Adam>(adam), torch_adam},
          {"optim::AdamW", made_of<optim::AdamW>(adamw), torch_adamw},
          {"torch SGD", torch_sgd, torch_sgd},
          {"torch Adam", torch_adam, torch_adam},
          {"torch AdamW", torch_adamw, torch_adamw},
          {"torch RMSprop", torch_rmsprop, torch_rmsprop},
          {"torch Adagrad", torch_adagrad, torch_adagrad}};
}

struct Setting {
  std::string name;
  std::optional<ShardOptions> options;  // absent: DistributedDataParallel
  std::size_t number = 0;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  std::vector<Setting> all{{"DDP", {}}};
  for (ShardLevel level : all_levels)
    for (ShardStorage storage : all_storages)
      all.push_back({name_of(level) + "_" + name_of(storage),
                     ShardOptions{.units = {"0", "2"}, .level = level, .storage = storage}});
  all.push_back({"reduce_in_step", ShardOptions{.units = {"0", "2"},
                                                .storage = ShardStorage::node_shared,
                                                .reduce_in_step = true}});
  for (std::size_t i = 0; i < all.size(); ++i) all[i].number = i;
  return all;
}

torch::nn::Sequential new_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 4));
  fill_parameters(*net, 3);
  return net;
}

at::Tensor loss_of(torch::nn::Sequential& net, int batch, int rank) {
  return (net->forward(values({3, 4}, 10 * batch + rank)) - 0.3).square().mean();
}

// The norms that clipping returned during a run, and the parameters at its end.
struct Outcome {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;
  double scale = 0;
};

void run_steps(const Loop& loop, Trainer& trainer) {
  for (int step = 0; step < loop_steps; ++step) loop.step(trainer, step);
}

// The element of the first weight that spoil() makes infinite; only one rank has this element.
constexpr std::int64_t spoiled = 23;

// A plain implementation of PyTorch's loss scaler.
struct PlainScaler {
  double scale = first_scale;
  std::optional<bool> finite;  // of gradients that are unscaled

  bool unscale(const std::vector<at::Tensor>& parameters) {
    finite = true;
    for (const at::Tensor& parameter : parameters) {
      finite = *finite && at::isfinite(parameter.grad()).all().item<bool>();
      parameter.mutable_grad().div_(scale);
    }
    return *finite;
  }
  void update() {
    if (!finite.value()) scale /= 2;
    finite.reset();
  }
};

void add_gradients(const std::vector<at::Tensor>& parameters,
                   const std::vector<at::Tensor>& averages) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    gradient = gradient.defined() ? gradient + averages[i] : averages[i].clone();
  }
}

Outcome one_process(const Loop& loop, const Kind& kind, int ranks) {
  auto net = new_net();
  auto parameters = net->parameters();
  auto optimizer = kind.oracle(parameters);
  PlainScaler scaler;
  std::vector<int> later;
  Trainer t;
  t.backward = [&](int batch, double factor) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      bool is_well = std::isnan(factor) && rank != ranks - 1;
      at::Tensor loss = loss_of(net, batch, rank) * (is_well ? 1 : factor);
      auto gradients = torch::autograd::grad({loss}, parameters);
      for (int earlier : later) {
        auto more = torch::autograd::grad({loss_of(net, earlier, rank)}, parameters);
        for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = more[i] + gradients[i];
      }
      of_ranks.push_back(gradients);
    }
    later.clear();
    add_gradients(parameters, average(of_ranks));
  };
  t.backward_later = [&](int batch) { later.push_back(batch); };
  t.spoil = [&] { parameters[0].mutable_grad().view({-1})[spoiled] = INFINITY; };
  t.zero_grad = t.zero_grad_of_optimizer = [&](bool none) {
    optimizer->zero_grad(none);
    later.clear();
  };
  t.step = [&] { optimizer->step(); };
  t.clip = [&](Clip, double max) { return torch::nn::utils::clip_grad_norm_(parameters, max); };
  t.clip_values = [&](double largest) { torch::nn::utils::clip_grad_value_(parameters, largest); };
  t.clipped_step = [&](double max) {
    double norm = torch::nn::utils::clip_grad_norm_(parameters, max);
    optimizer->step();
    return norm;
  };
  t.scale = [&] { return scaler.scale; };
  t.unscale = [&] { return scaler.unscale(parameters); };
  t.scaled_step = [&](std::optional<double> clip) {
    if (!scaler.finite) scaler.unscale(parameters);
    if (!*scaler.finite) return false;
    if (clip) torch::nn::utils::clip_grad_norm_(parameters, *clip);
    optimizer->step();
    return true;
  };
  t.update = [&] { scaler.update(); };
  run_steps(loop, t);
  return {t.norms, copies_of(*net), scaler.scale};
}

// Applies torch's own function to slices: it throws an error that names one, and leaves the
// gradients unchanged.
template <class Handle>
double clip_by_torch(Handle& handle, double max) {
  auto parameters = handle.parameters();
  if (dispatch::part_of(parameters[0]) == nullptr || handle.group().size() == 1)
    return torch::nn::utils::clip_grad_norm_(parameters, max);
  auto clip = [&] { torch::nn::utils::clip_grad_norm_(parameters, max); };
  expect_words(message_of<InvalidArgument>(clip), {"0.weight", "clip_grad_norm()", "ranks"});
  return handle.clip_grad_norm(max);
}

void spoil(const DistributedDataParallel& ddp) {
  ddp.parameters()[0].mutable_grad().view({-1}).narrow(0, spoiled, 1).fill_(INFINITY);
}
void spoil(const ShardedModule& sharded) {
  Part first = sharded.named_parameters()[0];
  layout::Range range = first.slice.range;
  if (range.begin <= spoiled && spoiled < range.end)
    first.tensor.mutable_grad().narrow(0, spoiled - range.begin, 1).fill_(INFINITY);
}

template <class Handle>
Outcome run_handle(Handle& handle, torch::nn::Sequential& net, const Loop& loop, const Kind& kind) {
  int rank = handle.group().rank(), ranks = handle.group().size();
  auto optimizer = kind.make(handle.parameters());
  optim::GradScaler scaler({.initial_scale = first_scale});
  Trainer t;
  t.backward = [&](int batch, double factor) {
    if (std::isnan(factor) && rank != ranks - 1) factor = 1;
    (loss_of(net, batch, rank) * factor).backward();
  };
  t.backward_later = [&](int batch) {
    auto scope = handle.no_sync();
    loss_of(net, batch, rank).backward();
  };
  t.spoil = [&] { spoil(handle); };
  t.zero_grad = [&](bool none) { handle.zero_grad(none); };
  t.zero_grad_of_optimizer = [&](bool none) { optimizer->zero_grad(none); };
  t.step = [&] { optimizer->step(); };
  t.clip = [&](Clip way, double max) {
    if (way == Clip::by_handle) return handle.clip_grad_norm(max);
    if (way == Clip::by_torch) return clip_by_torch(handle, max);
    return optim::clip_grad_norm(optimizer->param_groups()[0].params(), max);
  };
  t.clip_values = [&](double largest) {
    torch::nn::utils::clip_grad_value_(handle.parameters(), largest);
  };
  t.clipped_step = [&](double max) {
    return optim::step_transformed(*optimizer, {.clip_norm = max}).norm.value();
  };
  t.scale = [&] { return scaler.current_scale(); };
  t.unscale = [&] { return scaler.unscale(*optimizer); };
  t.scaled_step = [&](std::optional<double> clip) {
    return scaler.step(*optimizer, {.clip_norm = clip}).stepped;
  };
  t.update = [&] { scaler.update(); };
  run_steps(loop, t);
  Outcome outcome{t.norms, {}, scaler.current_scale()};
  for (const auto& [name, tensor] : handle.state_dict())
    outcome.parameters[name] = tensor.detach().clone();
  return outcome;
}

Outcome run_setting(const Setting& setting, Group group, const Loop& loop, const Kind& kind) {
  auto net = new_net();
  if (!setting.options) {
    DistributedDataParallel ddp(net, std::move(group));
    return run_handle(ddp, net, loop, kind);
  }
  auto sharded = fully_shard(net, std::move(group), *setting.options);
  return run_handle(sharded, net, loop, kind);
}

void expect_same(const Outcome& found, const Outcome& expected, const std::string& where) {
  constexpr double tolerance = 1e-5;
  ASSERT_EQ(found.norms.size(), expected.norms.size()) << where;
  for (std::size_t i = 0; i < found.norms.size(); ++i)
    EXPECT_NEAR(found.norms[i], expected.norms[i], tolerance * expected.norms[i]) << where;
  EXPECT_EQ(found.scale, expected.scale) << where;
  for (const auto& [name, tensor] : expected.parameters)
    EXPECT_TRUE(at::allclose(found.parameters.at(name), tensor, tolerance, 0.1 * tolerance))
        << where << ", " << name << ": off by "
        << (found.parameters.at(name) - tensor).abs().max().item<double>();
}

class TrainingLoops : public testing::TestWithParam<Setting> {
 protected:
  static void TearDownTestSuite() { expected.clear(); }
  static inline std::map<std::string, Outcome> expected;  // what all settings share
};

// Runs each loop with one of our optimizers and one of torch's; on one rank, with a single
// optimizer. Over all settings, each loop runs with each optimizer.
bool is_tried(std::size_t number_of_loop, std::size_t kind, int ranks, std::size_t setting) {
  constexpr std::size_t ours = 3, all = 8;
  const std::size_t shift = number_of_loop + setting;
  if (ranks == 1) return kind == shift % all;
  return kind < ours ? kind == shift % ours : kind - ours == shift % (all - ours);
}

TEST_P(TrainingLoops, GiveTheNumbersOfOneProcess) {
  const Setting& setting = GetParam();
  const std::vector<Kind> all = kinds();
  const std::vector<Loop> loops = training_loops();
  for (int ranks : {1, 3}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < loops.size(); ++j) {
        if (!is_tried(j, i, ranks, setting.number)) continue;
        const Kind& kind = all[i];
        const Loop& loop = loops[j];
        std::string where = kind.name + ", " + loop.name + ", " + std::to_string(ranks) + " ranks";
        if (!expected.contains(where)) expected[where] = one_process(loop, kind, ranks);
        run_as_threads(ranks, [&](Group group) {
          expect_same(run_setting(setting, group, loop, kind), expected.at(where), where);
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(TrainingLoops, RandomOnesToo) {
  const Setting& setting = GetParam();
  std::vector<Kind> all = kinds();
  for (int seed = 0; seed < 24; ++seed) {
    int ranks = 1 + seed % 3;
    const Kind& kind = all[static_cast<std::size_t>(seed) % all.size()];
    Outcome expected = one_process(random_loop(seed), kind, ranks);
    std::string where = kind.name + ", random " + std::to_string(seed);
    run_as_threads(ranks, [&](Group group) {
      expect_same(run_setting(setting, group, random_loop(seed), kind), expected, where);
    });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, TrainingLoops, testing::ValuesIn(settings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
