#include <lockstep/optim/schedule.h>

#include "base/check.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace lockstep::optim {
namespace {

double half_cosine(double from, double to, double share) {
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * share));
}

double share_of(std::int64_t step, std::int64_t steps) {
  return static_cast<double>(step) / static_cast<double>(steps);
}

void check_steps(const char* schedule, std::int64_t steps) {
  check(steps >= 1, "schedule {}: expected at least 1 step, found {}", schedule, steps);
}

}  // namespace

Schedule constant(Constant options) {
  check(options.factor >= 0, "schedule constant: expected a factor of at least 0, found {}",
        options.factor);
  check(options.steps >= 0, "schedule constant: expected at least 0 steps, found {}",
        options.steps);
  return [options](double base, std::int64_t step) {
    return step < options.steps || options.steps == 0 ? base * options.factor : base;
  };
}

Schedule linear(Linear options) {
  check_steps("linear", options.steps);
  check(options.start >= 0 && options.end >= 0,
        "schedule linear: expected factors of at least 0, found {} and {}", options.start,
        options.end);
  return [options](double base, std::int64_t step) {
    double share = share_of(std::min(step, options.steps), options.steps);
    return base * (options.start + (options.end - options.start) * share);
  };
}

Schedule step_decay(Step options) {
  check_steps("step_decay", options.step_size);
  return [options](double base, std::int64_t step) {
    const std::int64_t decays = step / options.step_size;
    return base * std::pow(options.gamma, static_cast<double>(decays));
  };
}

Schedule multi_step(MultiStep options) {
  check(std::is_sorted(options.milestones.begin(), options.milestones.end()),
        "schedule multi_step: expected milestones in ascending order");
  return [options = std::move(options)](double base, std::int64_t step) {
    auto passed = std::upper_bound(options.milestones.begin(), options.milestones.end(), step) -
                  options.milestones.begin();
    return base * std::pow(options.gamma, static_cast<double>(passed));
  };
}

Schedule exponential(double gamma) { return step_decay({.step_size = 1, .gamma = gamma}); }

Schedule polynomial(Polynomial options) {
  check_steps("polynomial", options.steps);
  return [options](double base, std::int64_t step) {
    double left = 1 - share_of(std::min(step, options.steps), options.steps);
    return base * std::pow(left, options.power);
  };
}

Schedule cosine(Cosine options) {
  check_steps("cosine", options.steps);
  return [options](double base, std::int64_t step) {
    return half_cosine(base, options.least, share_of(step, options.steps));
  };
}

Schedule cosine_with_restarts(Restarts options) {
  check_steps("cosine_with_restarts", options.first);
  check(options.factor >= 1,
        "schedule cosine_with_restarts: expected a factor of at least 1, found {}", options.factor);
  return [options](double base, std::int64_t step) {
    std::int64_t length = options.first;
    if (options.factor == 1) step %= length;
    for (; step >= length; length *= options.factor) step -= length;
    return half_cosine(base, options.least, share_of(step, length));
  };
}

namespace {

// One linear phase of a one-cycle schedule: from value `from` at its beginning to value `to` at
// step `end`.
struct Phase {
  double end, from, to;
};

std::vector<Phase> phases_of(const OneCycle& options, double start, double peak, double last) {
  auto steps = static_cast<double>(options.steps);
  double top = options.rising * steps - 1;
  if (!options.three_phases) return {{top, start, peak}, {steps - 1, peak, last}};
  return {
      {top, start, peak}, {2 * options.rising * steps - 2, peak, start}, {steps - 1, start, last}};
}

double value_at(const std::vector<Phase>& phases, bool straight, std::int64_t step) {
  auto place = static_cast<double>(step);
  double begin = 0;
  std::size_t i = 0;
  for (; i + 1 < phases.size() && place > phases[i].end; ++i) begin = phases[i].end;
  const Phase& phase = phases[i];
  if (phase.end == begin) return phase.to;  // a phase without steps
  double share = (place - begin) / (phase.end - begin);
  return straight ? phase.from + (phase.to - phase.from) * share
                  : half_cosine(phase.from, phase.to, share);
}

void check_one_cycle(const OneCycle& options) {
  check_steps("one_cycle", options.steps);
  check(options.rising >= 0 && options.rising <= 1,
        "schedule one_cycle: expected a share from 0 to 1, found {}", options.rising);
  check(options.divisor > 0 && options.final_divisor > 0,
        "schedule one_cycle: expected positive divisors, found {} and {}", options.divisor,
        options.final_divisor);
}

void check_one_cycle_step(const OneCycle& options, std::int64_t step) {
  check(step <= options.steps, "schedule one_cycle: step {} is after its last step, {}", step,
        options.steps);
}

}  // namespace

Schedule one_cycle(OneCycle options) {
  check_one_cycle(options);
  return [options](double base, std::int64_t step) {
    check_one_cycle_step(options, step);
    double start = base / options.divisor;
    return value_at(phases_of(options, start, base, start / options.final_divisor),
                    options.straight, step);
  };
}

Schedule one_cycle_momentum(OneCycle options, double least, double most) {
  check_one_cycle(options);
  return [=](double, std::int64_t step) {
    check_one_cycle_step(options, step);
    return value_at(phases_of(options, most, least, most), options.straight, step);
  };
}

namespace {

double decayed(Wsd::Shape shape, double share) {
  switch (shape) {
    case Wsd::Shape::cosine:
      return half_cosine(1, 0, share);
    case Wsd::Shape::root:
      return 1 - std::sqrt(share);
    case Wsd::Shape::linear:
      break;
  }
  return 1 - share;
}

}  // namespace

Schedule wsd(Wsd options) {
  check(options.warmup >= 0 && options.stable >= 0 && options.decay >= 0,
        "schedule wsd: expected counts of at least 0, found {}, {} and {}", options.warmup,
        options.stable, options.decay);
  check(options.least >= 0 && options.least <= 1,
        "schedule wsd: expected a share from 0 to 1, found {}", options.least);
  return [options](double base, std::int64_t step) {
    if (step < options.warmup) return base * share_of(step + 1, options.warmup);
    step -= options.warmup + options.stable;
    if (step < 0) return base;
    if (step >= options.decay) return base * options.least;
    double left = decayed(options.shape, share_of(step, options.decay));
    return base * (options.least + (1 - options.least) * left);
  };
}

Schedule one_after_another(std::vector<Schedule> schedules, std::vector<std::int64_t> milestones) {
  check(!schedules.empty() && schedules.size() == milestones.size() + 1,
        "one_after_another: expected one schedule more than milestones, found {} and {}",
        schedules.size(), milestones.size());
  check(std::is_sorted(milestones.begin(), milestones.end()),
        "one_after_another: expected milestones in ascending order");
  return [schedules = std::move(schedules), milestones = std::move(milestones)](double base,
                                                                                std::int64_t step) {
    auto which = static_cast<std::size_t>(
        std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin());
    return schedules[which](base, which == 0 ? step : step - milestones[which - 1]);
  };
}

namespace {

template <class Options>
bool set_beta1(torch::optim::OptimizerOptions& options, double momentum) {
  auto* adam = dynamic_cast<Options*>(&options);
  if (adam != nullptr) adam->betas({momentum, std::get<1>(adam->betas())});
  return adam != nullptr;
}

bool set_sgd_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options);
  if (sgd != nullptr) sgd->momentum(momentum);
  return sgd != nullptr;
}

// Does nothing for options without a momentum.
void set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  (void)(set_beta1<torch::optim::AdamWOptions>(options, momentum) ||
         set_beta1<torch::optim::AdamOptions>(options, momentum) ||
         set_sgd_momentum(options, momentum));
}

bool has_momentum(const torch::optim::OptimizerOptions& options) {
  return dynamic_cast<const torch::optim::AdamWOptions*>(&options) != nullptr ||
         dynamic_cast<const torch::optim::AdamOptions*>(&options) != nullptr ||
         dynamic_cast<const torch::optim::SGDOptions*>(&options) != nullptr;
}

}  // namespace

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, Schedule rate, Schedule momentum)
    : optimizer_(optimizer), rates_{std::move(rate)}, momentum_(std::move(momentum)) {
  set_step(0);
}

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, std::vector<Schedule> rates)
    : optimizer_(optimizer), rates_(std::move(rates)) {
  check(rates_.size() == optimizer.param_groups().size(),
        "Scheduler: expected as many schedules as parameter groups, {}, found {}",
        optimizer.param_groups().size(), rates_.size());
  set_step(0);
}

std::vector<double> Scheduler::bases_of_all() const {
  auto& groups = optimizer_.param_groups();
  std::vector<double> bases = bases_;
  while (bases.size() < groups.size()) bases.push_back(groups[bases.size()].options().get_lr());
  bases.resize(groups.size());  // groups may also have been removed
  return bases;
}

void Scheduler::step() {
  const std::vector<double> current = rates();
  for (std::size_t i = 0; i < last_rates_.size() && current.size() >= last_rates_.size(); ++i)
    check(current[i] == last_rates_[i],
          "Scheduler: group {} has the rate {}, expected {}, as this Scheduler has set it: another "
          "Scheduler or the program has changed it, and step() would undo the change",
          i, current[i], last_rates_[i]);
  set_step(step_ + 1);
}

void Scheduler::set_step(std::int64_t step) { load_state({step, bases_of_all()}); }

const Schedule& Scheduler::rate_of(std::size_t group) const {
  check(rates_.size() == 1 || group < rates_.size(), "Scheduler: group {} has no schedule", group);
  return rates_[rates_.size() == 1 ? 0 : group];
}

std::vector<Scheduler::Values> Scheduler::values_at(const State& state) const {
  const auto& groups = optimizer_.param_groups();
  check(state.step >= 0, "Scheduler: expected a step of at least 0, found {}", state.step);
  check(state.bases.size() == groups.size(),
        "Scheduler: expected a state with as many parameter groups, {}, found {}", groups.size(),
        state.bases.size());
  std::vector<Values> values;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    check(!momentum_ || has_momentum(groups[i].options()),
          "Scheduler: a schedule of the momentum is for SGD, Adam and AdamW");
    values.push_back({.rate = rate_of(i)(state.bases[i], state.step),
                      .momentum = momentum_ ? momentum_(0, state.step) : 0});
  }
  return values;
}

void Scheduler::check_state(const State& state) const { (void)values_at(state); }

void Scheduler::load_state(const State& state) {
  const std::vector<Values> values = values_at(state);
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(values[i].rate);
    if (momentum_) set_momentum(groups[i].options(), values[i].momentum);
  }
  bases_ = state.bases;
  last_rates_ = rates();
  step_ = state.step;
}

std::vector<double> Scheduler::rates() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void Scheduler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("step", c10::IValue(step_));
  archive.write("bases", c10::IValue(c10::List<double>(at::ArrayRef<double>(bases_))));
}

void Scheduler::load(torch::serialize::InputArchive& archive) {
  c10::IValue step, bases;
  archive.read("step", step);
  archive.read("bases", bases);
  load_state({step.toInt(), bases.toDoubleVector()});
}

}  // namespace lockstep::optim
