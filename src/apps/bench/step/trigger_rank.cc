#include "apps/bench/step/trigger.h"
#include "dispatch/key.h"

#include "apps/bench/rank_answers.h"
#include "apps/bench/spread.h"
#include "apps/bench/step/training.h"

#include <lockstep/comm/init.h>
#include <lockstep/optim/adamw.h>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr int batches = 30, calls_a_batch = 2000;

struct Passed {
  std::atomic<int> views = 0, uses = 0;
};

// LibTorch's callbacks are functions without an object; while nobody counts, it is null.
std::atomic<Passed*> counted_by = nullptr;

bool passes(const c10::IValue& value, c10::DispatchKey key) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().key_set().has(key);
  if (!value.isTensorList()) return false;
  auto tensors = value.toTensorVector();
  return std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.key_set().has(key);
  });
}

bool makes_a_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const c10::AliasInfo* alias = schema.returns().front().alias_info();
  return alias != nullptr && !alias->isWrite();
}

// Operations that LibTorch takes apart above autograd (linear) do not come as far as the trigger;
// their parts do.
std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  Passed* passed = counted_by.load();
  auto name = function.operator_name();
  if (passed == nullptr || !name) return nullptr;
  auto operation = c10::Dispatcher::singleton().findOp(*name);
  if (!operation || operation->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return nullptr;
  c10::DispatchKey key = dispatch::key();
  auto inputs = function.inputs();
  if (!std::any_of(inputs.begin(), inputs.end(),
                   [&](const c10::IValue& input) { return passes(input, key); }))
    return nullptr;
  ++(makes_a_view(operation->schema()) ? passed->views : passed->uses);
  return nullptr;
}

template <typename Function>
double seconds_of(Function&& function) {
  auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds that a call of `operation` takes longer on `sharded` than on an ordinary copy of it: the
// best batch of each, taken in turn.
template <typename Operation>
double extra_seconds(const at::Tensor& sharded, Operation&& operation) {
  at::Tensor plain = sharded.detach().clone();
  double best_sharded = 1e9, best_plain = 1e9;
  auto batch = [&](const at::Tensor& tensor) {
    return seconds_of([&] {
      for (int i = 0; i < calls_a_batch; ++i) (void)operation(tensor);
    });
  };
  for (int i = 0; i < batches; ++i) {
    best_sharded = std::min(best_sharded, batch(sharded));
    best_plain = std::min(best_plain, batch(plain));
  }
  return std::max(0.0, best_sharded - best_plain) / calls_a_batch;
}

class ShardedGpt {
 public:
  ShardedGpt(const ModelSize& size, const Group& world)
      : model_(make_bench_model("gpt", size)),
        sharded_(fully_shard(model_, world, *shard_options_of("full", model_->units()))),
        adamw_(sharded_.parameters(), torch::optim::AdamWOptions(1e-4)) {
    for (int i = 0; i < uncounted_steps; ++i) step();
  }

  void step() {
    sharded_.zero_grad();
    model_->loss().backward();
    adamw_.step();
  }

  void count_calls(TriggerCost& cost) {
    Passed passed;
    counted_by = &passed;
    auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&count).needsInputs(true));
    step();
    at::removeCallback(handle);
    counted_by = nullptr;
    cost.views = passed.views;
    cost.uses = passed.uses;
  }

  void time_calls(TriggerCost& cost) {
    at::NoGradGuard no_grad;
    Unsharded scope = sharded_.unsharded();
    auto parameters = model_->named_parameters();
    cost.seconds_a_view = extra_seconds(parameters["blocks.0.proj.weight"],
                                        [](const at::Tensor& tensor) { return tensor.t(); });
    cost.seconds_a_use = extra_seconds(parameters["blocks.0.ln_1.weight"],
                                       [](const at::Tensor& tensor) { return tensor.mul(2); });
  }

 private:
  std::shared_ptr<BenchModel> model_;
  ShardedModule sharded_;
  optim::AdamW adamw_;
};

}  // namespace

int serve_trigger(const ModelSize& size, int threads) {
  Group world = init();
  at::set_num_threads(threads);
  ShardedGpt gpt(size, world);
  say({{"ready", true}});
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<double> seconds(std::stoul(line));
    for (double& value : seconds) value = seconds_of([&] { gpt.step(); });
    TriggerCost cost;
    gpt.count_calls(cost);
    gpt.time_calls(cost);
    say({{"views", cost.views},
         {"uses", cost.uses},
         {"seconds_a_view", cost.seconds_a_view},
         {"seconds_a_use", cost.seconds_a_use},
         {"min_s", spread_of(seconds).min},
         {"p50_s", spread_of(seconds).p50},
         {"trigger", dispatch::describe_key()}});
  }
  return 0;
}

}  // namespace lockstep::apps
