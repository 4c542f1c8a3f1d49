// Measures the overhead of an operation on a global tensor over the same operation on its local
// tensor, after the first call. The mesh has one rank, and the tensors are so small that the
// overhead dominates. Also compares a step of a GPT whose parameters are replicated global tensors
// with a step with plain parameters: both alternate in one process, and the results are medians of
// CPU time; `ratio` is the median of the ratios.
//
//   build/release/bench/global_overhead --benchmark_repetitions=9
//     --benchmark_enable_random_interleaving=true --benchmark_report_aggregates_only=true
#include <lockstep/comm/init.h>
#include <lockstep/global/tensor.h>
#include <lockstep/models/gpt.h>

#include <benchmark/benchmark.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <vector>

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

// Forward, backward and an AdamW update of 4 blocks of width 256, on 4 x 128 tokens.
class GptSteps {
 public:
  explicit GptSteps(const Mesh* mesh) : model_(options()), x_(ids()), y_(ids()) {
    if (mesh != nullptr) {
      for (at::Tensor& parameter : model_->parameters())
        distribute_(parameter, *mesh, {Replicate()});
      x_ = distribute(x_, *mesh, {Replicate()});
      y_ = distribute(y_, *mesh, {Replicate()});
    }
    adamw_.emplace(model_->parameters(), torch::optim::AdamWOptions(1e-3));
  }

  // Returns milliseconds of CPU time of this thread.
  double step() {
    const double begin = milliseconds();
    adamw_->zero_grad();
    model_->loss(x_, y_).backward();
    adamw_->step();
    return milliseconds() - begin;
  }

 private:
  static models::GptOptions options() {
    torch::manual_seed(1);
    models::GptOptions options;
    options.layers = 4;
    options.heads = 4;
    options.hidden_size = 256;
    options.context_length = 128;
    options.vocabulary = 512;
    return options;
  }
  static at::Tensor ids() { return at::randint(512, {4, 128}); }
  static double milliseconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
  }

  models::Gpt model_;
  at::Tensor x_, y_;
  std::optional<torch::optim::AdamW> adamw_;
};

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

void gpt_step(benchmark::State& state) {
  const Group world = init();  // as in a program: init() selects the matrix multiplication library
  at::set_num_threads(1);
  Mesh mesh(world, {{"tp", 1}});
  set_global_options(mesh, {.replicate_plain = true});
  GptSteps plain(nullptr), global(&mesh);
  for (int warm_up = 0; warm_up < 3; ++warm_up) plain.step(), global.step();
  std::vector<double> plain_times, global_times, ratios;
  for (auto _ : state) {
    const bool plain_first = plain_times.size() % 2 == 0;
    const double first = plain_first ? plain.step() : global.step();
    const double second = plain_first ? global.step() : plain.step();
    plain_times.push_back(plain_first ? first : second);
    global_times.push_back(plain_first ? second : first);
    ratios.push_back(global_times.back() / plain_times.back());
  }
  state.counters["plain_ms"] = quantile(plain_times, 0.5);
  state.counters["global_ms"] = quantile(global_times, 0.5);
  state.counters["ratio"] = quantile(ratios, 0.5);
  state.counters["ratio_q1"] = quantile(ratios, 0.25);
  state.counters["ratio_q3"] = quantile(ratios, 0.75);
}

BENCHMARK(gpt_step)->Iterations(120)->Unit(benchmark::kMillisecond);
// Argument 0: plain tensors; 1: global tensors.
BENCHMARK(add)->Arg(0)->Arg(1);
BENCHMARK(mm)->Arg(0)->Arg(1);
BENCHMARK(transpose)->Arg(0)->Arg(1);
BENCHMARK(view)->Arg(0)->Arg(1);
BENCHMARK(multiply_in_place)->Arg(0)->Arg(1);
BENCHMARK(sum)->Arg(0)->Arg(1);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
