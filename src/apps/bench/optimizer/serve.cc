#include "apps/bench/optimizer/serve.h"

#include "apps/bench/optimizer/memory_mix.h"
#include "apps/bench/rank_answers.h"
#include "optim/threads.h"

#include <lockstep/base/error.h>
#include <lockstep/optim/adamw.h>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

namespace lockstep::apps {
namespace {

constexpr std::int64_t piece_elements = 1 << 16;
constexpr int turns_to_choose = 8;  // of the two passes

optim::StateFormat format_of(const std::string& state) {
  if (state == "bfloat16") return optim::StateFormat::bfloat16;
  return state == "blocks" ? optim::StateFormat::blocks : optim::StateFormat::float32;
}

std::vector<at::Tensor> make_parameters(const OptimizerOptions& options) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < options.tensors; ++i) {
    parameters.push_back(torch::randn({options.elements}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn({options.elements});
  }
  return parameters;
}

template <class Function>
double seconds_of(const Function& function) {
  auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class OptimizerWork {
 public:
  explicit OptimizerWork(const OptimizerOptions& options)
      : parameters_(make_parameters(options)),
        adamw_(parameters_, torch::optim::AdamWOptions(1e-3),
               {.state = format_of(options.states.front())}) {
    for (int step = 0; step < uncounted_steps; ++step) adamw_.step();
    if (options.states.front() != "float32") return;
    find_spans();
    choose_mix();
  }

  void update() { adamw_.step(); }

  void memory() const {
    if (spans_.empty()) throw BadInput("the memory mix is that of float32 states");
    pass(mix_);
  }

 private:
  void find_spans() {
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

  void pass(Mix mix) const {
    optim::for_each_in_parallel(spans_.size(),
                                [&](std::size_t i) { run_memory_mix(spans_[i], mix, 1, 0); });
  }

  // A bound is what the best pass reaches.
  void choose_mix() {
    std::map<Mix, double> least;
    for (int turn = 0; turn < turns_to_choose; ++turn)
      for (Mix mix : {Mix::plain, Mix::ahead}) {
        double seconds = seconds_of([&] { pass(mix); });
        least[mix] = turn == 0 ? seconds : std::min(seconds, least[mix]);
      }
    mix_ = least[Mix::ahead] < least[Mix::plain] ? Mix::ahead : Mix::plain;
  }

  std::vector<at::Tensor> parameters_;
  optim::AdamW adamw_;
  std::vector<MixSpan> spans_;
  Mix mix_ = Mix::plain;
};

}  // namespace

int serve_optimizer(const OptimizerOptions& options) {
  at::set_num_threads(options.threads);
  OptimizerWork work(options);
  say({{"ready", true}});
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    std::size_t times = 0;
    words >> what >> times;
    std::vector<double> seconds(times);
    for (double& value : seconds)
      value = seconds_of([&] { what == "memory" ? work.memory() : work.update(); });
    say({{"seconds", seconds}});
  }
  return 0;
}

}  // namespace lockstep::apps
