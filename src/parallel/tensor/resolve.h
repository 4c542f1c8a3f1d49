// Applies a plan of tensor parallelism (lockstep/parallel/tensor/plan.h) to a module's tensors.
#pragma once

#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/tensor/plan.h>

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::tensor_parallel {

struct PlannedParameter {
  NamedParameter parameter;
  Placement placement;
  int pattern = -1;  // index in the plan; -1: unmatched
};

// Returns each parameter once, in the module's order. Throws InvalidArgument as describe() does.
[[nodiscard]] std::vector<PlannedParameter> planned(const TensorPlan& plan,
                                                    const torch::nn::Module& module, int ranks);

[[nodiscard]] std::string text_of(const TensorPlan& plan,
                                  const std::vector<PlannedParameter>& parameters, int ranks,
                                  bool sequence_parallel);

}  // namespace lockstep::tensor_parallel
