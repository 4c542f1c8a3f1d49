// What an operation on a global tensor costs beyond the same operation on its local tensor, after
// the first call: on a mesh of one rank, with tensors so small that nothing else counts.
//
//   build/release/bench/global_overhead
#include <lockstep/global/tensor.h>

#include <benchmark/benchmark.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

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

// Argument 0: plain tensors; 1: global ones.
BENCHMARK(add)->Arg(0)->Arg(1);
BENCHMARK(mm)->Arg(0)->Arg(1);
BENCHMARK(transpose)->Arg(0)->Arg(1);
BENCHMARK(view)->Arg(0)->Arg(1);
BENCHMARK(multiply_in_place)->Arg(0)->Arg(1);
BENCHMARK(sum)->Arg(0)->Arg(1);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
