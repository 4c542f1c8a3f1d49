#include "shard/part_use.h"

#include "shard/each_tensor.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/shard/part.h>

#include <ATen/core/enum_tag.h>

#include <cstddef>
#include <string_view>
#include <unordered_set>

namespace lockstep::shard {
namespace {

std::string_view short_name(const c10::OperatorHandle& operation) {
  std::string_view name = operation.schema().name();
  constexpr std::string_view prefix = "aten::";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool is_pointwise(const c10::OperatorHandle& operation) {
  return operation.hasTag(at::Tag::pointwise);
}

// What LibTorch does not call pointwise and treats elements apart all the same, or reads none.
// allclose() is there beside equal(), which it calls so: both compare what this rank has. Views do
// not come here.
bool is_known(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "copy_",        "_to_copy",     "fill_",         "zero_",
      "detach_",      "masked_fill_", "copysign_",     "empty_like",
      "zeros_like",   "ones_like",    "full_like",     "new_empty",
      "new_zeros",    "new_ones",     "new_full",      "new_empty_strided",
      "_fused_sgd_",  "_fused_adam_", "_fused_adamw_", "_fused_adagrad_",
      "allclose",     "isclose",      "is_pinned",     "_pin_memory",
      "record_stream"};
  return names.contains(name) || (name.starts_with("_foreach_") && name.ends_with('_'));
}

// clone() is the way to an ordinary tensor.
bool gives_parts(const c10::OperatorHandle& operation) {
  std::string_view name = short_name(operation);
  return name == "_to_copy" || (is_pointwise(operation) && name != "clone");
}

[[noreturn]] void refuse(const c10::OperatorHandle& operation, const c10::TensorImpl& tensor,
                         const PartPlace& place) {
  const Part& part = place.parts->at(place.first + tensor.storage_offset(), tensor.numel());
  throw InvalidArgument(formatted(
      "{}: {} is divided over {} ranks, and this operation would only use the elements {}..{} that "
      "are here, so that every rank gets another result; norms, clipping and loss scaling over all "
      "ranks: the handle's clip_grad_norm(), optim::gradient_norm(), optim::GradScaler; whole "
      "values: the handle's unsharded() or state_dict(); this rank's elements alone: clone()",
      operation.schema().name(), part.name, place.parts->division()->size(), part.range.begin,
      part.range.end));
}

}  // namespace

PartUse::PartUse(const c10::OperatorHandle& operation, const torch::jit::Stack& stack,
                 c10::DispatchKey key)
    : operation_(operation), key_(key) {
  const c10::TensorImpl* first = nullptr;
  for (const c10::IValue& value : torch::jit::last(stack, operation.schema().arguments().size()))
    for_each_tensor_in(value, [&](const c10::TensorImpl& tensor) {
      if (!tensor.key_set().has(key)) return;
      const PartPlace* place = part_place_of(tensor);
      if (place == nullptr || place->parts->division()->size() == 1) return;
      bool is_apart = is_pointwise(operation) || is_known(short_name(operation));
      // Two parts of different sizes meet by broadcasting: elements of one with all of the other.
      bool is_spread = value.isTensor() && first != nullptr && first->sizes() != tensor.sizes();
      if (!is_apart || is_spread) refuse(operation, tensor, *place);
      if (value.isTensor()) first = &tensor;
      if (!of_results_ && gives_parts(operation))
        of_results_ = {place->parts, place->first + tensor.storage_offset()};
    });
}

void PartUse::mark_results(torch::jit::Stack& stack) const {
  if (!of_results_) return;
  const auto& returns = operation_.schema().returns();
  for (std::size_t i = 0; i < returns.size(); ++i) {
    c10::IValue& value = stack[stack.size() - returns.size() + i];
    bool is_new = returns[i].alias_info() == nullptr && value.isTensor();
    if (!is_new || !value.toTensor().defined()) continue;
    const at::Tensor& result = value.toTensor();
    if (result.layout() == at::kStrided && !result.key_set().has(key_))
      value = as_part(result, of_results_->parts, of_results_->first, key_);
  }
}

}  // namespace lockstep::shard
