#include "dispatch/parts/check_parts.h"

#include "base/format.h"
#include "dispatch/each_tensor.h"
#include "dispatch/parts/part_record.h"

#include <lockstep/base/error.h>

#include <ATen/core/enum_tag.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_set>

namespace lockstep::dispatch {
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
                         const PartRecord& record) {
  const Part& part = record.parts->at(record.first + tensor.storage_offset(), tensor.numel());
  throw InvalidArgument(formatted(
      "{}: {} is divided over {} ranks, and this operation would only use the elements {}..{} that "
      "are here, so that every rank gets another result; norms, clipping and loss scaling over all "
      "ranks: the handle's clip_grad_norm(), optim::gradient_norm(), optim::GradScaler; whole "
      "values: the handle's unsharded() or state_dict(); this rank's elements alone: clone()",
      operation.schema().name(), part.name, record.parts->division_of(part)->size(),
      part.slice.range.begin, part.slice.range.end));
}

// How one operation uses parts that have several ranks. Made before it runs.
class PartUse {
 public:
  explicit PartUse(const Call& call) : call_(call) {
    const c10::FunctionSchema& schema = call.operation().schema();
    for (const c10::IValue& value : torch::jit::last(call.stack(), schema.arguments().size()))
      for_each_tensor_in(value,
                         [&](const c10::TensorImpl& tensor) { add(tensor, value.isTensor()); });
  }

  void mark_results() const {
    if (parts_ == nullptr) return;
    const auto& returns = call_.operation().schema().returns();
    torch::jit::Stack& stack = call_.stack();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      c10::IValue& value = stack[stack.size() - returns.size() + i];
      bool is_new = returns[i].alias_info() == nullptr && value.isTensor();
      if (!is_new || !value.toTensor().defined()) continue;
      const at::Tensor& result = value.toTensor();
      if (result.layout() == at::kStrided && !result.key_set().has(call_.key()))
        value = as_part(result, parts_, offset_, call_.key());
    }
  }

 private:
  void add(const c10::TensorImpl& tensor, bool is_alone) {
    if (!tensor.key_set().has(call_.key())) return;
    const PartRecord* record = part_record_of(tensor);
    if (record == nullptr) return;
    const Part& part = record->parts->at(record->first + tensor.storage_offset(), tensor.numel());
    if (record->parts->division_of(part)->size() == 1) return;
    const c10::OperatorHandle& operation = call_.operation();
    bool is_apart = is_pointwise(operation) || is_known(short_name(operation));
    // Two parts of different sizes meet by broadcasting: elements of one with all of the other.
    bool is_spread = is_alone && first_ != nullptr && first_->sizes() != tensor.sizes();
    if (!is_apart || is_spread) refuse(operation, tensor, *record);
    if (is_alone) first_ = &tensor;
    if (parts_ != nullptr || !gives_parts(operation)) return;
    parts_ = record->parts;
    offset_ = record->first + tensor.storage_offset();
  }

  const Call& call_;
  const c10::TensorImpl* first_ = nullptr;
  std::shared_ptr<const Parts> parts_;  // that results lie in; null: they are no parts
  std::int64_t offset_ = 0;             // where in them
};

}  // namespace

void check_parts(Call& call) {
  if (call.kind() != Call::Kind::compute) return call.proceed();
  PartUse use(call);
  call.proceed();
  use.mark_results();
}

}  // namespace lockstep::dispatch
