#include "apps/bench/step/ratios.h"

#include <lockstep/base/check.h>

namespace lockstep::apps {
namespace {

constexpr std::string_view ours = "lockstep", theirs = "pytorch";

}  // namespace

std::vector<StepRatio> step_ratios(std::string_view model, int ranks) {
  std::vector<StepRatio> ratios{
      {theirs, "none", ours, "none"},
      {theirs, "ddp", ours, "ddp"},
      {theirs, "zero1", ours, "optimizer", Goal{.must = 1.8, .aim = 2.1}},
      {theirs, "zero1", ours, "gradients"},
      {theirs, "fsdp2", ours, "full", Goal{.must = 2.3, .aim = 2.7}},
      {theirs, "fsdp2", ours, "full-node-shared"},
      {ours, "optimizer", ours, "ddp"},
      {ours, "gradients", ours, "ddp"},
      {ours, "full", ours, "ddp"},
      {ours, "full-node-shared", ours, "ddp", Goal{.must = 1.05, .aim = 1, .at_least = false}}};
  if (model == "mlp" && ranks == 2) return ratios;
  for (StepRatio& ratio : ratios) ratio.goal.reset();
  return ratios;
}

Spread quotients_of(std::span<const double> numerators, std::span<const double> denominators) {
  check(numerators.size() == denominators.size() && !numerators.empty(),
        "quotients: expected as many numerators as denominators, found {} and {}",
        numerators.size(), denominators.size());
  std::vector<double> quotients;
  for (std::size_t i = 0; i < numerators.size(); ++i)
    quotients.push_back(numerators[i] / denominators[i]);
  return spread_of(std::move(quotients));
}

}  // namespace lockstep::apps
