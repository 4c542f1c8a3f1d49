// Measures the cost of the dispatch key (dispatch/key.h): the number of operations with this key in
// a step of `gpt` at level full, times the cost per operation. Views need no memory, so they are
// counted and timed separately. The answer to a number of steps is calls, seconds per call and
// seconds per step.
#include "serve.h"

#include "dispatch/key.h"

#include "apps/bench/spread.h"
#include "measure/step.h"
#include "sys/program.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/init.h>
#include <lockstep/optim/adamw.h>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>

namespace lockstep::bench {
namespace {

constexpr int batches = 30, calls_a_batch = 2000, uncounted_steps = 2;

struct Passed {
  std::atomic<int> views = 0, uses = 0;
};

// LibTorch's callbacks are plain functions, so the counter is global; null while nothing is
// counted.
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

// Composite operations that LibTorch decomposes above autograd (linear) do not reach the key; their
// parts do.
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
  auto start = Clock::now();
  function();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the additional seconds of `operation` on `sharded` compared with a plain copy: the median
// of differences between consecutive batches. It may be negative because of noise.
template <typename Operation>
double extra_seconds(const at::Tensor& sharded, Operation&& operation) {
  at::Tensor plain = sharded.detach().clone();
  auto batch = [&](const at::Tensor& tensor) {
    return seconds_of([&] {
      for (int i = 0; i < calls_a_batch; ++i) (void)operation(tensor);
    });
  };
  std::vector<double> differences;
  for (int i = 0; i < batches; ++i) {
    double on_plain = batch(plain);
    differences.push_back((batch(sharded) - on_plain) / calls_a_batch);
  }
  return apps::spread_of(std::move(differences)).p50;
}

class ShardedGpt {
 public:
  ShardedGpt(const ModelSize& size, const Group& world)
      : model_(make_bench_model("gpt", size)),
        batches_(batches_of_rank(world.rank())),
        sharded_(fully_shard(model_.module, world, *shard_options_of("full", model_.units))),
        adamw_(sharded_.parameters(), torch::optim::AdamWOptions(1e-4)) {
    for (int i = 0; i < uncounted_steps; ++i) step();
  }

  void step() {
    sharded_.zero_grad();
    model_.loss(batches_).backward();
    adamw_.step();
  }

  void count_calls(nlohmann::json& cost) {
    Passed passed;
    counted_by = &passed;
    auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&count).needsInputs(true));
    step();
    at::removeCallback(handle);
    counted_by = nullptr;
    cost["views"] = passed.views.load();
    cost["uses"] = passed.uses.load();
  }

  void time_calls(nlohmann::json& cost) {
    at::NoGradGuard no_grad;
    Unsharded scope = sharded_.unsharded();
    auto parameters = model_.module->named_parameters();
    cost["seconds_a_view"] = extra_seconds(parameters["transformer.h.0.attn.c_proj.weight"],
                                           [](const at::Tensor& tensor) { return tensor.t(); });
    cost["seconds_a_use"] = extra_seconds(parameters["transformer.h.0.ln_1.weight"],
                                          [](const at::Tensor& tensor) { return tensor.mul(2); });
  }

 private:
  BenchModel model_;
  at::Generator batches_;
  ShardedModule sharded_;
  optim::AdamW adamw_;
};

}  // namespace

int serve_trigger(const Words& words) {
  ModelSize size = usual_size("gpt");
  int threads = 1;
  CommandOptions options("lockstep-bench-rank trigger", "", "");
  options.add({"width", "N", ""}, number_into(size.width, 1, 1 << 20));
  options.add({"depth", "N", ""}, number_into(size.depth, 1, 1 << 20));
  options.add({"threads", "N", ""}, number_into(threads, 1, 1024));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  Group world = init();
  at::set_num_threads(threads);
  torch::manual_seed(1);
  ShardedGpt gpt(size, world);
  serve(std::cin, std::cout, {{"ready", true}}, [&](const std::string& line) {
    std::vector<double> seconds(steps_of(line));
    for (double& value : seconds) value = seconds_of([&] { gpt.step(); });
    nlohmann::json cost{{"min_s", apps::spread_of(seconds).min},
                        {"p50_s", apps::spread_of(seconds).p50},
                        {"trigger", c10::toString(dispatch::key())}};
    gpt.count_calls(cost);
    gpt.time_calls(cost);
    return cost;
  });
  return 0;
}

}  // namespace lockstep::bench
