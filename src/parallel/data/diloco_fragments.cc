#include "parallel/data/diloco_fragments.h"

#include "base/check.h"

#include <ATen/ops/cat.h>

namespace lockstep::data_parallel {

std::vector<std::vector<NamedParameter>> divide(const std::vector<NamedParameter>& parameters,
                                                int fragments) {
  std::vector<NamedParameter> trained;
  std::int64_t all = 0, taken = 0;
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    check(
        c10::isFloatingType(parameter.tensor.scalar_type()) && parameter.tensor.element_size() >= 4,
        "DiLoCo: parameters must be float32 or wider, {} is {}", parameter.name,
        c10::toString(parameter.tensor.scalar_type()));
    check(
        trained.empty() || trained.front().tensor.options().type_equal(parameter.tensor.options()),
        "DiLoCo: parameters must have one dtype and device, {} differs from {}", parameter.name,
        trained.empty() ? "" : trained.front().name);
    trained.push_back(parameter);
    all += parameter.tensor.numel();
  }
  check(static_cast<std::size_t>(fragments) <= trained.size(),
        "DiLoCo: expected at least as many trained parameters as fragments, {}, found {}",
        fragments, trained.size());
  std::vector<std::vector<NamedParameter>> runs(static_cast<std::size_t>(fragments));
  std::size_t run = 0;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    std::size_t left = trained.size() - i, runs_left = runs.size() - 1 - run;
    bool is_full = taken * fragments >= all * static_cast<std::int64_t>(run + 1);
    if (!runs[run].empty() && runs_left > 0 && (is_full || left <= runs_left)) ++run;
    taken += trained[i].tensor.numel();
    runs[run].push_back(trained[i]);
  }
  return runs;
}

at::Tensor flat_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> parts;
  for (const NamedParameter& parameter : parameters)
    parts.push_back(parameter.tensor.detach().reshape({-1}));
  return at::cat(parts);
}

}  // namespace lockstep::data_parallel
