// A rank that measures the bytes that its host's network interface sends while ranks sum numbers.
// For each way of summing, rank 0 prints the bytes of the host that sent most, and takes the
// minimum over RUNS runs, because TCP retransmits some packets on a busy host. The second number is
// that of Group::traffic() on the rank that sent most.
//
//   wire_bytes NUMBERS
//   all_reduce float32 67123456 64000000
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/parallel/data/diloco.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace ls = lockstep;

namespace {

constexpr int RUNS = 3;

// Reads /proc, because /sys shows the interfaces of the network namespace in which it was mounted.
std::int64_t sent_by_interface(const std::string& name) {
  std::ifstream table("/proc/self/net/dev");
  for (std::string line; std::getline(table, line);) {
    if (line.find(name + ":") == std::string::npos) continue;
    std::istringstream columns(line.substr(line.find(':') + 1));
    std::int64_t number = 0;
    for (int column = 0; column < 9; ++column) columns >> number;
    return number;
  }
  throw std::runtime_error("no interface " + name);
}

struct Numbers : torch::nn::Module {
  explicit Numbers(std::int64_t count) : weight(register_parameter("weight", at::zeros({count}))) {}
  at::Tensor weight;
};

class Measurement {
 public:
  explicit Measurement(ls::Group world) : world_(std::move(world)) {}

  // Measures `use`, which must block until its calls are complete on this rank.
  void measure(const std::string& what, const std::function<void()>& use) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), counted = 0;
    for (int run = 0; run < RUNS; ++run) {
      const auto [wire, traffic] = sent_by_one(use);
      least = std::min(least, wire);
      counted = traffic;
    }
    if (world_.is_root())
      std::printf("%s %lld %lld\n", what.c_str(), static_cast<long long>(least),
                  static_cast<long long>(counted));
  }

  void measure_sums(const std::string& dtype_name, at::ScalarType dtype, std::int64_t count) {
    at::Tensor all = at::ones({count}, dtype);
    at::Tensor part = at::zeros({count / world_.size()}, dtype);
    measure("all_reduce " + dtype_name, [&] { world_.all_reduce(all, ls::Op::average).wait(); });
    measure("reduce_scatter " + dtype_name,
            [&] { world_.reduce_scatter(part, all, ls::Op::average).wait(); });
    measure("reduce " + dtype_name, [&] { world_.reduce(all, 0, ls::Op::average).wait(); });
  }

  void measure_diloco(const std::string& format_name, ls::PseudoGradients format,
                      std::int64_t count) {
    Numbers numbers(count);
    ls::DiLoCo diloco(numbers, world_, {.inner_steps = 1, .pseudo_gradients = format});
    measure("DiLoCo " + format_name, [&] {
      {
        at::NoGradGuard no_grad;
        numbers.weight.fill_(world_.rank());
      }
      (void)diloco.step();
    });
  }

 private:
  // Returns the bytes of the host that sent most, and those of Group::traffic() on the rank that
  // sent most.
  std::pair<std::int64_t, std::int64_t> sent_by_one(const std::function<void()>& use) {
    world_.barrier().wait();
    const std::int64_t before = sent_by_interface("eth0"), counted = world_.traffic().bytes;
    world_.barrier().wait();
    use();
    world_.barrier().wait();
    at::Tensor sent =
        at::tensor({sent_by_interface("eth0") - before, world_.traffic().bytes - counted});
    world_.all_reduce(sent, ls::Op::max).wait();
    return {sent[0].item<std::int64_t>(), sent[1].item<std::int64_t>()};
  }

  ls::Group world_;
};

}  // namespace

int main(int argc, char** argv) try {
  ls::Group world = ls::init();
  // divisible into equal parts for 1 to 4 ranks
  const std::int64_t count = std::stoll(argc > 1 ? argv[1] : "1000000") / 12 * 12;
  if (world.is_root())
    std::printf("ranks %d backend %s numbers %lld\n", world.size(),
                std::string(world.backend()).c_str(), static_cast<long long>(count));
  Measurement measurement(world);
  measurement.measure_sums("float32", at::kFloat, count);
  measurement.measure_sums("bfloat16", at::kBFloat16, count);
  measurement.measure_sums("float16", at::kHalf, count);
  measurement.measure_diloco("float32", ls::PseudoGradients::float32, count);
  measurement.measure_diloco("int8", ls::PseudoGradients::int8, count);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
