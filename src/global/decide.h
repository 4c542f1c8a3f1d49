// Making the decision for one call, and what follows from its first run.
#pragma once

#include "global/arguments.h"
#include "global/decisions.h"
#include "global/operation.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>

namespace lockstep::global {

// InvalidArgument when there is no rule, or none that fits.
[[nodiscard]] DecisionPtr decide(const c10::OperatorHandle& handle, const Operation& operation,
                                 const Arguments& arguments, std::span<const c10::IValue> values,
                                 Space& space);

// Strides of the results that are no arguments, as the operation would give them for whole tensors;
// row-major where LibTorch does not say. InvalidArgument when the rule gives other sizes than it.
[[nodiscard]] std::vector<Dims> strides_of_results(const c10::OperatorHandle& handle,
                                                   const Decision& decision,
                                                   const Arguments& arguments,
                                                   torch::jit::Stack values);

}  // namespace lockstep::global
