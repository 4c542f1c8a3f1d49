#include "measure/optimizer_work.h"

#include "optim/threads.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <limits>

namespace lockstep::bench {
namespace {

constexpr std::array<std::string_view, 3> states{"float32", "bfloat16", "blocks"};
constexpr std::int64_t piece_elements = 1 << 16;
constexpr int turns_to_choose = 8;  // turns per kind of pass

optim::StateFormat format_of(const std::string& state) {
  if (state == "bfloat16") return optim::StateFormat::bfloat16;
  return state == "blocks" ? optim::StateFormat::blockwise : optim::StateFormat::float32;
}

std::vector<at::Tensor> make_parameters(const OptimizerSizes& sizes) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < sizes.tensors; ++i) {
    parameters.push_back(torch::randn({sizes.elements}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn({sizes.elements});
  }
  return parameters;
}

template <class Function>
double seconds_of(const Function& function) {
  auto start = Clock::now();
  function();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::span<const std::string_view> state_names() { return states; }

double bytes_moved(std::string_view state) {
  if (state == "bfloat16") return 20;
  return state == "blocks" ? 16 + 4 * 4.0 / 256 : 28;  // scales are read and written
}

OptimizerWork::OptimizerWork(const OptimizerSizes& sizes, const std::string& state)
    : parameters_(make_parameters(sizes)),
      adamw_(parameters_, torch::optim::AdamWOptions(1e-3), {.state = format_of(state)}) {
  for (int step = 0; step < uncounted_steps; ++step) adamw_.step();
  if (state != "float32") return;
  find_spans();
  choose_mix();
}

double OptimizerWork::update() {
  return seconds_of([&] { adamw_.step(); });
}

double OptimizerWork::memory() {
  if (spans_.empty())
    throw BadInput("the memory bound is measured for float32 states only: give --states float32");
  return seconds_of([&] { pass(mix_); });
}

void OptimizerWork::find_spans() {
  for (const at::Tensor& parameter : parameters_) {
    auto& state = dynamic_cast<torch::optim::AdamWParamState&>(
        *adamw_.state().at(parameter.unsafeGetTensorImpl()));
    for (std::int64_t begin = 0; begin < parameter.numel(); begin += piece_elements)
      spans_.push_back({.parameter = parameter.data_ptr<float>() + begin,
                        .gradient = parameter.grad().const_data_ptr<float>() + begin,
                        .average = state.exp_avg().data_ptr<float>() + begin,
                        .square = state.exp_avg_sq().data_ptr<float>() + begin,
                        .count = std::min(piece_elements, parameter.numel() - begin)});
  }
}

void OptimizerWork::pass(Mix mix) const {
  optim::for_each_in_parallel(spans_.size(),
                              [&](std::size_t i) { run_memory_mix(spans_[i], mix, 1, 0); });
}

// The bound is the time of the faster pass.
void OptimizerWork::choose_mix() {
  double plain = std::numeric_limits<double>::max(), ahead = plain;
  for (int turn = 0; turn < turns_to_choose; ++turn) {
    plain = std::min(plain, seconds_of([&] { pass(Mix::plain); }));
    ahead = std::min(ahead, seconds_of([&] { pass(Mix::ahead); }));
  }
  mix_ = ahead < plain ? Mix::ahead : Mix::plain;
}

}  // namespace lockstep::bench
