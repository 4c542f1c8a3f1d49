#include "apps/bench/step/ratios.h"

#include <lockstep/base/check.h>

namespace lockstep::apps {
namespace {

constexpr std::string_view our_system = "lockstep", their_system = "pytorch";

}  // namespace

std::vector<StepRatio> step_ratios(std::string_view model, int ranks) {
  std::vector<StepRatio> ratios{
      {their_system, "none", our_system, "none"},
      {their_system, "ddp", our_system, "ddp"},
      {their_system, "zero1", our_system, "optimizer", Goal{.must = 1.8, .aim = 2.1}},
      {their_system, "zero1", our_system, "gradients"},
      {their_system, "fsdp2", our_system, "full", Goal{.must = 2.3, .aim = 2.7}},
      {their_system, "fsdp2", our_system, "full-node-shared"},
      {our_system, "optimizer", our_system, "ddp"},
      {our_system, "gradients", our_system, "ddp"},
      {our_system, "full", our_system, "ddp"},
      {our_system, "full-node-shared", our_system, "ddp",
       Goal{.must = 1.05, .aim = 1, .at_least = false}}};
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
