#include "measure/optimizer.h"

#include "apps/bench/spread.h"
#include "base/format.h"
#include "optim/threads.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

namespace lockstep::bench {
namespace {

// One row of the table. The memory pass uses the arrays of float32.
struct Contender {
  std::string name;
  double bytes = 0;  // bytes per parameter that a step moves
  std::function<double()> step;
  std::vector<double> seconds = {};   // of all steps
  std::vector<double> by_round = {};  // mean per round
};

std::vector<Contender> contenders_of(const OptimizerOptions& options) {
  std::vector<Contender> contenders;
  for (const std::string& state : options.states) {
    auto work = std::make_shared<OptimizerWork>(options.sizes, state);
    contenders.push_back({state, bytes_moved(state), [work] { return work->update(); }});
    if (state == "float32")
      contenders.push_back({"memory", bytes_moved(state), [work] { return work->memory(); }});
  }
  return contenders;
}

// Runs a turn. Its first step is not counted, because it evicts dirty cache lines of the previous
// turn.
void take_turn(Contender& contender, int steps) {
  (void)contender.step();
  std::vector<double> seconds(static_cast<std::size_t>(steps));
  for (double& value : seconds) value = contender.step();
  contender.seconds.insert(contender.seconds.end(), seconds.begin(), seconds.end());
  contender.by_round.push_back(std::accumulate(seconds.begin(), seconds.end(), 0.0) / steps);
}

// Returns the ratio of two times: the time that the memory pass needs to move the contender's
// bytes, and the contender's own time.
std::optional<apps::Spread> share_of_bound(const Contender& contender,
                                           const std::vector<Contender>& contenders) {
  for (const Contender& memory : contenders) {
    if (memory.name != "memory") continue;
    std::vector<double> shares;
    for (std::size_t i = 0; i < memory.by_round.size(); ++i)
      shares.push_back(memory.by_round[i] * contender.bytes / memory.bytes / contender.by_round[i]);
    return apps::spread_of(std::move(shares));
  }
  return std::nullopt;
}

nlohmann::ordered_json json_of(const apps::Spread& spread) {
  return {{"min", spread.min},
          {"p25", spread.p25},
          {"p50", spread.p50},
          {"p75", spread.p75},
          {"max", spread.max}};
}

void print_json(const OptimizerOptions& options, const Contender& contender,
                const std::optional<apps::Spread>& share) {
  apps::Spread seconds = apps::spread_of(contender.seconds);
  nlohmann::ordered_json row{{"bench", "optimizer"},
                             {"kind", contender.name},
                             {"parameters", options.sizes.parameters()},
                             {"threads", options.threads},
                             {"rounds", options.rounds},
                             {"bytes_per_parameter", contender.bytes},
                             {"min_s", seconds.min},
                             {"p50_s", seconds.p50},
                             {"max_s", seconds.max}};
  if (share) row["share_of_memory_bound"] = json_of(*share);
  print_to(stdout, "{}\n", row.dump());
}

void print_heading(const OptimizerOptions& options) {
  print_to(stdout, "optimizer: AdamW over {} float32 parameters, threads={} rounds={} steps={}\n",
           options.sizes.parameters(), options.threads, options.rounds, options.steps);
  print_to(stdout, "{:<12}{:>10}{:>10}{:>8}{:>9}  share of memory bound (quartiles of rounds)\n",
           "state", "ms min", "ms p50", "bytes", "GB/s");
}

void print_line(const OptimizerOptions& options, const Contender& contender,
                const std::optional<apps::Spread>& share) {
  apps::Spread seconds = apps::spread_of(contender.seconds);
  double moved = contender.bytes * static_cast<double>(options.sizes.parameters());
  print_to(stdout, "{:<12}{:>10.2f}{:>10.2f}{:>8.2f}{:>9.2f}  {}\n", contender.name,
           seconds.min * 1e3, seconds.p50 * 1e3, contender.bytes, moved / seconds.p50 / 1e9,
           share ? formatted("{:.2f} ({:.2f} .. {:.2f})", share->p50, share->p25, share->p75)
                 : std::string("-"));
}

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

void measure_optimizers(const OptimizerOptions& options) {
  std::vector<Contender> contenders = contenders_of(options);
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round) {
    print_to(stderr, "measuring round {} of {}\n", round + 1, options.rounds);
    for (std::size_t i = 0; i < contenders.size(); ++i)
      take_turn(contenders[(i + round) % contenders.size()], options.steps);
  }
  if (!options.json) print_heading(options);
  for (const Contender& contender : contenders) {
    auto share = share_of_bound(contender, contenders);
    options.json ? print_json(options, contender, share) : print_line(options, contender, share);
  }
  std::fflush(stdout);
}

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
