// Compares two ways to compute the matrix product and the all_reduce in a Rowwise() layer's forward
// (or a Colwise() layer's backward): in pieces of its rows, so that the all_reduce of a piece
// overlaps the product of the next piece, or as a whole. Each row of the table has the medians of
// alternating steps in ms, and the time that pieces save.
//
//   build/release/bin/lockstep run --ranks 2 build/release/bench/chunked_matmul [ROUNDS]
#include <lockstep/comm/init.h>

#include "base/format.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <vector>

namespace lockstep {
namespace {

constexpr std::array<std::int64_t, 4> pieces{1, 2, 4, 8};

struct Layer {
  const char* name;
  std::int64_t tokens, inner, outer;  // inner: of this rank
};

// The models of bench/README.md on 2 ranks, and an mlp with more rows.
constexpr std::array<Layer, 7> layers{{{"gpt c_proj forward", 2048, 192, 384},
                                       {"gpt mlp.c_proj forward", 2048, 768, 384},
                                       {"gpt c_attn backward", 2048, 576, 384},
                                       {"mlp 2048, 32 rows", 32, 1024, 2048},
                                       {"mlp 2048, 256 rows", 256, 1024, 2048},
                                       {"mlp 2048, 1024 rows", 1024, 1024, 2048},
                                       {"mlp 4096, 256 rows", 256, 2048, 4096}}};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Spent {
  std::vector<double> seconds;
  double processor = 0;
};

void compute(Group& group, const at::Tensor& x, const at::Tensor& weight, at::Tensor& y,
             std::int64_t count) {
  const std::int64_t rows = x.size(0) / count;
  std::vector<Work> works;
  for (std::int64_t i = 0; i < count; ++i) {
    at::Tensor part = y.narrow(0, i * rows, rows);
    at::mm_out(part, x.narrow(0, i * rows, rows), weight);
    works.push_back(group.all_reduce(part));
  }
  for (Work& work : works) work.wait();
}

void measure(Group& group, const Layer& layer, int rounds) {
  const at::Tensor x = at::randn({layer.tokens, layer.inner});
  const at::Tensor weight = at::randn({layer.outer, layer.inner}).t();
  at::Tensor y = group.empty_shared({layer.tokens, layer.outer}, at::kFloat);
  std::array<Spent, pieces.size()> all;
  constexpr int calls = 2;
  for (int round = -2; round < rounds; ++round)
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      group.barrier().wait();
      const double began = now(), processor = processor_seconds();
      for (int call = 0; call < calls; ++call) compute(group, x, weight, y, pieces[i]);
      if (round < 0) continue;
      all[i].seconds.push_back((now() - began) / calls);
      all[i].processor += processor_seconds() - processor;
    }
  if (group.rank() != 0) return;
  std::cout << formatted("{:<24}", layer.name);
  for (const Spent& spent : all)
    std::cout << formatted("{:>9.3f} ({:>5.3f})", median(spent.seconds) * 1e3,
                           median(all[0].seconds) / median(spent.seconds));
  std::cout << "   processor";
  for (const Spent& spent : all)
    std::cout << formatted("{:>7.3f}", spent.processor / all[0].processor);
  std::cout << std::endl;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** words) {
  using namespace lockstep;
  const int rounds = count > 1 ? std::atoi(words[1]) : 40;
  Group group = init();
  at::set_num_threads(1);
  at::NoGradGuard no_grad;
  if (group.rank() == 0) {
    std::cout << formatted("{:<24}", "ms (whole / pieces)");
    for (const std::int64_t number : pieces) std::cout << formatted("{:>9} pieces ", number);
    std::cout << std::endl;
  }
  for (const Layer& layer : layers) measure(group, layer, rounds);
  return 0;
}
