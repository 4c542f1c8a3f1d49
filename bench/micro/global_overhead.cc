// What an operation on a global tensor costs beyond the same operation on its local tensor, after
// the first call: on a mesh of one rank, with tensors so small that nothing else counts. And a step
// of a GPT whose parameters are all replicated global tensors, beside one with plain parameters.
//
//   build/release/bench/global_overhead --benchmark_repetitions=9
//     --benchmark_enable_random_interleaving=true --benchmark_report_aggregates_only=true
#include <lockstep/global/tensor.h>
#include <lockstep/models/gpt.h>

#include <benchmark/benchmark.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

namespace lockstep {
namespace {

at::Tensor tensor(bool is_global) {
  static Mesh mesh(Group(), {{"tp", 1}});
  at::Tensor plain = at::ones({8, 8});
  return is_global ? distribute(plain, mesh, {Shard(0)}) : plain;
}

template <class Operation>
void measure(benchmark::State& state, Operation operation) {
  at::set_num_threads(1);
  at::NoGradGuard no_grad;
  at::Tensor a = tensor(state.range(0) != 0), b = tensor(state.range(0) != 0);
  for (auto _ : state) operation(a, b);
}

void add(benchmark::State& state) {
  measure(state, [](auto& a, auto& b) { benchmark::DoNotOptimize(at::add(a, b)); });
}
void mm(benchmark::State& state) {
  measure(state, [](auto& a, auto& b) { benchmark::DoNotOptimize(at::mm(a, b)); });
}
void transpose(benchmark::State& state) {
  measure(state, [](auto& a, auto&) { benchmark::DoNotOptimize(a.t()); });
}
void view(benchmark::State& state) {
  measure(state, [](auto& a, auto&) { benchmark::DoNotOptimize(a.view({8, 2, 4})); });
}
void multiply_in_place(benchmark::State& state) {
  measure(state, [](auto& a, auto&) { benchmark::DoNotOptimize(a.mul_(1.0)); });
}
void sum(benchmark::State& state) {
  measure(state, [](auto& a, auto&) { benchmark::DoNotOptimize(a.sum({0})); });
}

// Forward, backward and an update by AdamW of 4 blocks of width 256, on 4 x 128 tokens.
void gpt_step(benchmark::State& state) {
  at::set_num_threads(1);
  models::GptOptions options;
  options.layers = 4;
  options.heads = 4;
  options.width = 256;
  options.block = 128;
  options.vocabulary = 512;
  torch::manual_seed(1);
  models::Gpt model(options);
  Mesh mesh(Group(), {{"tp", 1}});
  set_global_options(mesh, {.replicate_plain = true});
  at::Tensor x = at::randint(512, {4, 128}), y = at::randint(512, {4, 128});
  if (state.range(0) != 0) {
    for (at::Tensor& parameter : model->parameters()) distribute_(parameter, mesh, {Replicate()});
    x = distribute(x, mesh, {Replicate()});
    y = distribute(y, mesh, {Replicate()});
  }
  torch::optim::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (auto _ : state) {
    adamw.zero_grad();
    model->loss(x, y).backward();
    adamw.step();
  }
}

// Argument 0: plain tensors; 1: global ones.
BENCHMARK(gpt_step)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK(add)->Arg(0)->Arg(1);
BENCHMARK(mm)->Arg(0)->Arg(1);
BENCHMARK(transpose)->Arg(0)->Arg(1);
BENCHMARK(view)->Arg(0)->Arg(1);
BENCHMARK(multiply_in_place)->Arg(0)->Arg(1);
BENCHMARK(sum)->Arg(0)->Arg(1);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
