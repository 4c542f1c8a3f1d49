#include "global/global_tensor.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "global/arguments.h"
#include "global/convert.h"
#include "global/decide.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>

namespace lockstep::global {
namespace {

using torch::jit::Stack;
using Locals = c10::SmallVector<at::Tensor, 6>;

// Replaces each tensor among the arguments by action(tensor).
template <typename Action>
void replace_tensors(std::span<c10::IValue> values, const Action& action) {
  for (c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) value = action(value.toTensor());
    if (!value.isList()) continue;
    auto list = value.toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const c10::IValue element = list.get(i);
      if (element.isTensor() && element.toTensor().defined())
        list.set(i, action(element.toTensor()));
    }
    value = std::move(list);
  }
}

bool is_elsewhere(const at::Tensor& tensor, const MeshContext& context) {
  const GlobalTensor* found = global_of(tensor);
  return found != nullptr && found->spec->context != &context &&
         found->spec->context->has_ranks_of(context);
}

// Returns the tensor in whose context the operation runs. Each handle has its own context on the
// ranks of its mesh. A written tensor stays in its context; otherwise the last tensor of a handle
// decides, because weights follow inputs.
const GlobalTensor& chosen(const Operation& operation, std::span<c10::IValue> values,
                           const GlobalTensor& one) {
  const GlobalTensor* last = &one;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].isTensor()) continue;
    const GlobalTensor* found = global_of(values[i].toTensor());
    if (found == nullptr || !found->spec->context->has_ranks_of(*one.spec->context)) continue;
    if (operation.written[i]) return *found;
    if (found->spec->context->is_of_handle()) last = found;
  }
  return *last;
}

// Moves tensors of other contexts on the same ranks to the context of the returned tensor.
const GlobalTensor& bring_together(const Operation& operation, std::span<c10::IValue> values,
                                   const GlobalTensor& one) {
  const GlobalTensor& to = chosen(operation, values, one);
  replace_tensors(values, [&](const at::Tensor& tensor) {
    if (!is_elsewhere(tensor, *to.spec->context)) return tensor;
    GlobalTensor& found = *global_of(tensor);
    check_is_fresh(found, operation.name);
    const Spec& spec = *found.spec;
    return wrap(
        found.local,
        to.spec->context->spec(spec.placements, spec.sizes, spec.strides, spec.dtype, spec.device),
        to.mesh);
  });
  return to;
}

// Autograd records a view after its kernel has returned. If view replay is enabled, it stores a
// function that makes the view again from its base; otherwise the gradient of a write through the
// view would need as_strided(). The next operation disables it again, because views with such a
// function keep more memory alive.
void replay_next_view(bool on) {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  if (state.get_view_replay_enabled() != on) state.set_view_replay_enabled(on);
}

// One call in progress.
class Run {
 public:
  Run(dispatch::Call& call, const Operation& operation, Arguments& arguments,
      const GlobalTensor& one)
      : call_(call),
        operation_(operation),
        arguments_(arguments),
        mesh_(one.mesh),
        context_(*one.spec->context) {}

  void first() {
    check_is_possible(operation_, arguments_, context_);
    Stack values(arguments().begin(), arguments().end());
    WholeResults whole;
    if (makes_tensors()) whole = whole_results(call_.operation(), operation_, arguments_, values);
    DecisionPtr decision =
        decide(call_.operation(), operation_, arguments_, values, whole, context_);
    std::vector<Dims> strides;
    if (makes_tensors()) strides = strides_of_results(call_.operation(), *decision, whole);
    run_locally(*decision);
    if (makes_tensors() && !decision->results.empty()) {
      find_specs(*decision, strides);
      decision->has_run = true;
    }
    give_results(*decision);
    if (operation_.way == Operation::Way::rule)
      context_.decisions().add(arguments_.key, std::move(decision));
  }

  void again(const Decision& decision) {
    run_locally(decision);
    give_results(decision);
  }

 private:
  [[nodiscard]] std::span<c10::IValue> arguments() const {
    auto items = torch::jit::last(call_.stack(), operation_.written.size());
    return {const_cast<c10::IValue*>(items.data()), items.size()};
  }
  [[nodiscard]] std::span<c10::IValue> results() const {
    auto items = torch::jit::last(call_.stack(), operation_.returns.size());
    return {const_cast<c10::IValue*>(items.data()), items.size()};
  }
  [[nodiscard]] bool makes_tensors() const {
    return std::ranges::any_of(operation_.returns, [](const Operation::Return& result) {
      return (result.is_tensor && result.alias < 0) || result.is_list;
    });
  }

  void run_locally(const Decision& decision) {
    if (decision.is_plain && !arguments_.has_list) return run_as_it_lies(decision);
    for (std::size_t i = 0; i < arguments_.tensors.size(); ++i)
      locals_.push_back(local_of(decision, i));
    std::span<c10::IValue> values = arguments();
    if (arguments_.has_list) {
      put_tensors(arguments_, locals_, values);
    } else {
      for (std::size_t i = 0; i < locals_.size(); ++i)
        values[static_cast<std::size_t>(arguments_.tensors[i].argument)] = locals_[i];
    }
    for (const auto& [argument, value] : decision.replaced)
      values[static_cast<std::size_t>(argument)] = value;
    run_kernel(decision);
    for (std::size_t i = 0; i < locals_.size(); ++i)
      if (arguments_.tensors[i].written && arguments_.tensors[i].global != nullptr)
        write_back(decision, i);
  }

  // Runs the operation without converting a tensor, as in most calls.
  void run_as_it_lies(const Decision& decision) {
    std::span<c10::IValue> values = arguments();
    for (const TensorArgument& argument : arguments_.tensors) {
      auto& value = values[static_cast<std::size_t>(argument.argument)];
      if (argument.global == nullptr) {
        value = argument.tensor;
        continue;
      }
      if (argument.written) begin_write(*argument.global);
      if (argument.global->is_copy()) check_is_fresh(*argument.global, operation_.name);
      value = argument.global->local;
    }
    run_kernel(decision);
  }

  // If this rank fails, other ranks may not fail, and would wait for it in the next collective:
  // abort the groups.
  void run_kernel(const Decision& decision) {
    if (!decision.may_fail_alone) return run_kernel_alike(decision);
    try {
      run_kernel_alike(decision);
    } catch (const std::exception& error) {
      context_.end_groups(operation_.name, error);
      throw;
    }
  }

  void run_kernel_alike(const Decision& decision) {
    if (decision.kernel) {
      decision.kernel(call_.stack());
    } else {
      call_.operation().callBoxed(call_.stack());
    }
  }

  void begin_write(GlobalTensor& global) {
    check(!global.is_copy(),
          "{}: this view is a redistributed copy of its base, so a write would not change the "
          "base; write to a clone() of it",
          operation_.name);
    global.begin_write();
  }

  at::Tensor local_of(const Decision& decision, std::size_t i) {
    const TensorArgument& argument = arguments_.tensors[i];
    const Decision::Operand& wanted = decision.operands[i];
    if (argument.global == nullptr) {
      if (!wanted.converts) return argument.tensor;
      return converted(argument.tensor, *spec_of_plain(argument.tensor), wanted.placements);
    }
    if (argument.written) begin_write(*argument.global);
    if (argument.global->is_copy()) check_is_fresh(*argument.global, operation_.name);
    if (!wanted.converts) {
      // An operation without a rule may resize a tensor that it writes.
      bool may_resize = argument.written && operation_.way == Operation::Way::unknown;
      return may_resize ? argument.global->local.alias() : argument.global->local;
    }
    if (!argument.written) return values_in(argument.tensor, wanted.placements);
    at::Tensor local = converted(argument.global->local, *argument.global->spec, wanted.placements);
    return local.clone();
  }

  SpecPtr spec_of_plain(const at::Tensor& tensor) {
    return context_.spec(context_.replicated(), tensor.sizes(), tensor.strides(),
                         tensor.scalar_type(), tensor.device());
  }

  void write_back(const Decision& decision, std::size_t i) {
    const TensorArgument& argument = arguments_.tensors[i];
    const Decision::Operand& how = decision.operands[i];
    GlobalTensor& global = *argument.global;
    at::Tensor values = locals_[i];
    check(operation_.way != Operation::Way::unknown ||
              values.sizes() == at::IntArrayRef(global.spec->sizes),
          "{}: expected a result of the sizes {} of the tensor that it is written to, found {}",
          operation_.name, c10::str(at::IntArrayRef(global.spec->sizes)), c10::str(values.sizes()));
    if (!how.converts && !how.converts_back) return;
    if (how.converts_back) {
      const Spec& spec = *global.spec;
      SpecPtr left =
          spec.context->spec(how.left, spec.sizes, spec.strides, spec.dtype, spec.device);
      values = converted(values, *left, spec.placements);
    }
    check(values.sizes() == global.local.sizes(),
          "{}: expected a result of the sizes of the tensor that it is written to",
          operation_.name);
    at::Tensor(global.local).copy_(values);
  }

  // Sets the specs of the tensor results, in order.
  void find_specs(Decision& decision, const std::vector<Dims>& strides) {
    std::vector<at::Tensor> locals = tensors_in(results());
    check(locals.size() == decision.results.size(),
          "{}: expected as many results as its rule has, {}, found {}", operation_.name,
          decision.results.size(), locals.size());
    for (std::size_t i = 0; i < locals.size(); ++i) {
      const Decision::Result& result = decision.results[i];
      if (!locals[i].defined()) {
        decision.specs.emplace_back();
        continue;
      }
      Dims expected = local_sizes(result.sizes, result.placements, context_.place());
      check(locals[i].sizes() == at::IntArrayRef(expected),
            "{}: expected sizes {} of this rank's part of result {}, placed {}, found {}: its rule "
            "is wrong",
            operation_.name, c10::str(at::IntArrayRef(expected)), i, describe(result.placements),
            c10::str(locals[i].sizes()));
      decision.specs.push_back(context_.spec(result.placements, result.sizes, strides[i],
                                             locals[i].scalar_type(), locals[i].device()));
    }
  }

  void give_results(const Decision& decision) {
    std::size_t number = 0;
    std::span<c10::IValue> values = results();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Operation::Return& result = operation_.returns[i];
      if (result.is_list) {
        c10::List<at::Tensor> list;
        for (const c10::IValue& element : values[i].toListRef())
          list.push_back(wrapped(decision, number++, element.toTensor()));
        values[i] = std::move(list);
      } else if (result.is_tensor) {
        if (result.alias >= 0) {
          values[i] = argument_at(result.alias);
          ++number;
        } else {
          values[i] = wrapped(decision, number++, values[i].toTensor());
        }
      }
    }
  }

  [[nodiscard]] const at::Tensor& argument_at(int index) const {
    return std::ranges::find(arguments_.tensors, index, &TensorArgument::argument)->tensor;
  }

  at::Tensor wrapped(const Decision& decision, std::size_t number, const at::Tensor& local) {
    if (!local.defined()) return local;
    const Spec* known = decision.has_run ? decision.specs[number].get() : nullptr;
    SpecPtr spec;
    if (known != nullptr && known->dtype == local.scalar_type()) {
      spec = decision.specs[number];
    } else if (known != nullptr) {
      spec = context_.spec(known->placements, known->sizes, known->strides, local.scalar_type(),
                           local.device());
    } else {
      spec = context_.spec(context_.replicated(), local.sizes(), local.strides(),
                           local.scalar_type(), local.device());
    }
    if (!operation_.is_view) return wrap(local, spec, mesh_);
    replay_next_view(at::GradMode::is_enabled());
    // A view is an inference tensor only if its base is one, even in inference mode.
    std::optional<c10::InferenceMode> off;
    if (c10::InferenceMode::is_enabled() && !arguments_.tensors[0].tensor.is_inference())
      off.emplace(false);
    at::Tensor view = wrap(local, spec, mesh_);
    if (GlobalTensor* base = arguments_.tensors[0].global) {
      bool is_copy = decision.is_copy || (local.numel() > 0 && !local.is_alias_of(base->local));
      is_copy ? global_of(view)->set_copy_of(*base) : global_of(view)->set_base(*base);
    }
    return view;
  }

  dispatch::Call& call_;
  const Operation& operation_;
  Arguments& arguments_;
  const Mesh& mesh_;  // mesh of a tensor among the arguments
  MeshContext& context_;
  Locals locals_;
};

// Implements squeeze_() and the like: gives the tensor other sizes over the same memory.
void become_view(dispatch::Call& call, const Operation& operation) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Stack& stack = call.stack();
  const at::Tensor self = torch::jit::last(stack, operation.written.size())[0].toTensor();
  operation.view->callBoxed(stack);
  self.unsafeGetTensorImpl()->shallow_copy_from(stack.back().toTensor().getIntrusivePtr());
  stack.back() = self;
}

void run_in_context(dispatch::Call& call, const Operation& operation, Arguments& arguments,
                    const GlobalTensor& place) {
  MeshContext& context = *place.spec->context;
  if (!operation.gradient.empty()) check_gradient(operation, arguments, context);
  Run run(call, operation, arguments, place);
  if (DecisionPtr decision = context.decisions().find(arguments.key)) return run.again(*decision);
  run.first();
}

}  // namespace

void run_operation(dispatch::Call& call, const GlobalTensor& one) {
  const Operation& operation = operation_of(call.operation());
  if (operation.way == Operation::Way::composite)
    return call.operation().callBoxedForDispatchKey(operation.composite, call.stack());
  if (operation.way == Operation::Way::in_place_view) return become_view(call, operation);
  replay_next_view(false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto items = torch::jit::last(call.stack(), operation.written.size());
  const std::span values(const_cast<c10::IValue*>(items.data()), items.size());
  Arguments arguments(operation, values, *one.spec->context);
  if (!arguments.is_mixed) return run_in_context(call, operation, arguments, one);
  arguments.give_back(values);
  const GlobalTensor& place = bring_together(operation, values, one);
  Arguments together(operation, values, *place.spec->context);
  run_in_context(call, operation, together, place);
}

}  // namespace lockstep::global
