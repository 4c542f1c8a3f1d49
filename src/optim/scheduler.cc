#include <lockstep/optim/scheduler.h>

#include "base/check.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <utility>

namespace lockstep::optim {
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

void set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  check(set_beta1<torch::optim::AdamWOptions>(options, momentum) ||
            set_beta1<torch::optim::AdamOptions>(options, momentum) ||
            set_sgd_momentum(options, momentum),
        "Scheduler: a schedule of the momentum is for SGD, Adam and AdamW");
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

void Scheduler::take_bases() {
  auto& groups = optimizer_.param_groups();
  while (bases_.size() < groups.size()) bases_.push_back(groups[bases_.size()].options().get_lr());
}

const Schedule& Scheduler::rate_of(std::size_t group) const {
  check(rates_.size() == 1 || group < rates_.size(), "Scheduler: group {} has no schedule", group);
  return rates_[rates_.size() == 1 ? 0 : group];
}

void Scheduler::set_step(std::int64_t step) {
  check(step >= 0, "Scheduler: expected a step of at least 0, found {}", step);
  take_bases();
  auto& groups = optimizer_.param_groups();
  std::vector<double> rates;
  for (std::size_t i = 0; i < groups.size(); ++i) rates.push_back(rate_of(i)(bases_[i], step));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(rates[i]);
    if (momentum_) set_momentum(groups[i].options(), momentum_(0, step));
  }
  step_ = step;
}

std::vector<double> Scheduler::rates() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void Scheduler::load_state(const State& state) {
  check(state.bases.size() == optimizer_.param_groups().size(),
        "Scheduler: expected a state with as many parameter groups, {}, found {}",
        optimizer_.param_groups().size(), state.bases.size());
  bases_ = state.bases;
  set_step(state.step);
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
