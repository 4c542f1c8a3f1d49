// Making the decision for one call, and what follows from its first run.
#pragma once

#include "global/arguments.h"
#include "global/decisions.h"
#include "global/operation.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>

namespace lockstep::global {

// Throws InvalidArgument if global tensors cannot take part in the operation.
void check_is_possible(const Operation& operation, const Arguments& arguments, const Space& space);

// Throws InvalidArgument if the operation's gradient will be asked for and has no rule. The answer
// depends on more than the decision does: to be called each time.
void check_gradient(const Operation& operation, const Arguments& arguments, const Space& space);

// The results that LibTorch would give for whole tensors, without values; nothing where it does
// not say. Throws InvalidArgument for arguments that are wrong for whole tensors, since they may be
// right for a rank's parts.
using WholeResults = std::optional<std::vector<at::Tensor>>;
[[nodiscard]] WholeResults whole_results(const c10::OperatorHandle& handle,
                                         const Operation& operation, const Arguments& arguments,
                                         torch::jit::Stack values);

// Throws InvalidArgument if no choice of the operation's rule can be reached.
[[nodiscard]] DecisionPtr decide(const c10::OperatorHandle& handle, const Operation& operation,
                                 const Arguments& arguments, std::span<const c10::IValue> values,
                                 const WholeResults& whole, Space& space);

// Strides of the results that are no arguments, as the operation would give them for whole tensors;
// row-major where LibTorch does not say. InvalidArgument when the rule gives other sizes than it.
[[nodiscard]] std::vector<Dims> strides_of_results(const c10::OperatorHandle& handle,
                                                   const Decision& decision,
                                                   const WholeResults& whole);

}  // namespace lockstep::global
