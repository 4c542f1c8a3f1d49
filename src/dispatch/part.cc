#include <lockstep/dispatch/part.h>

#include "base/format.h"
#include "dispatch/call.h"
#include "dispatch/key.h"
#include "dispatch/part.h"

#include <lockstep/base/error.h>

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>

namespace lockstep {

ShardGroup::ShardGroup(std::shared_ptr<Group> ranks, std::optional<Duration> timeout)
    : ShardGroup(nullptr, std::move(ranks), timeout) {}

ShardGroup::ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<Group> ranks,
                       std::optional<Duration> timeout)
    : ranks_(std::move(ranks)), inner_(std::move(inner)), timeout_(timeout) {}

ShardGroup::ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<ShardGroup> outer)
    : inner_(std::move(inner)), outer_(std::move(outer)) {}

std::shared_ptr<ShardGroup> ShardGroup::inside(const std::shared_ptr<ShardGroup>& outer) {
  if (!outer) return nullptr;
  std::weak_ptr<ShardGroup>& known = inside_[outer.get()];
  if (auto alive = known.lock()) return alive;
  auto made = std::make_shared<ShardGroup>(shared_from_this(), outer);
  known = made;
  return made;
}

int ShardGroup::size() const {
  return (inner_ ? inner_->size() : 1) * (outer_ ? outer_->size() : ranks_->size());
}

double ShardGroup::sum(double number) { return sum_over_last(sum_inside(number)); }

double ShardGroup::largest(double number) { return largest_over_last(largest_inside(number)); }

double ShardGroup::sum_inside(double number) {
  if (inner_) number = inner_->sum(number);
  return outer_ ? outer_->sum_inside(number) : number;
}

double ShardGroup::largest_inside(double number) {
  if (inner_) number = inner_->largest(number);
  return outer_ ? outer_->largest_inside(number) : number;
}

const Group* ShardGroup::last_ranks() const { return outer_ ? outer_->last_ranks() : ranks_.get(); }

double ShardGroup::sum_over_last(double number) {
  if (outer_) return outer_->sum_over_last(number);
  if (ranks_->size() == 1) return number;
  at::Tensor all = at::full({1}, number, at::kDouble);
  ranks_->all_reduce(all, Op::sum, {.tag = "parts of a norm", .timeout = timeout_}).wait();
  return all.item<double>();
}

// Reduces NaN as a flag: backends differ in the maximum of a number and NaN.
double ShardGroup::largest_over_last(double number) {
  if (outer_) return outer_->largest_over_last(number);
  if (ranks_->size() == 1) return number;
  bool is_nan = std::isnan(number);
  at::Tensor all = at::tensor({is_nan ? 0.0 : number, is_nan ? 1.0 : 0.0}, at::kDouble);
  ranks_->all_reduce(all, Op::max, {.tag = "largest of the parts", .timeout = timeout_}).wait();
  const double* numbers = all.const_data_ptr<double>();
  return numbers[1] > 0 ? std::numeric_limits<double>::quiet_NaN() : numbers[0];
}

namespace dispatch {
namespace {

// The parts in a lazy storage, whose first element is the one at offset `first` of the list.
struct PartRecord final : StorageRecord {
  PartRecord(PartList list, std::int64_t offset) : parts(std::move(list)), first(offset) {}

  // Returns the part that contains `tensor`, which must be in the storage. Several empty parts may
  // have the same offset.
  [[nodiscard]] const Part& part_at(const c10::TensorImpl& tensor) const {
    const std::int64_t offset = first + tensor.storage_offset();
    const Part* found = &parts->front();
    for (const Part& part : *parts) {
      if (part.offset == offset && part.slice.numel() == tensor.numel()) return part;
      if (part.offset <= offset) found = &part;
    }
    return *found;
  }

  const PartList parts;
  const std::int64_t first;
};

const PartRecord* part_record_of(const c10::TensorImpl& tensor) {
  const StorageRecord* record = record_of(tensor);
  bool is_of_parts = record != nullptr && typeid(*record) == typeid(PartRecord);
  return is_of_parts ? static_cast<const PartRecord*>(record) : nullptr;
}

}  // namespace

std::shared_ptr<const StorageRecord> record_of(PartList parts, std::int64_t first) {
  return std::make_shared<PartRecord>(std::move(parts), first);
}

PartList parts_beside(const at::Tensor& tensor) {
  const PartRecord* record = part_record_of(*tensor.unsafeGetTensorImpl());
  return record == nullptr ? nullptr : record->parts;
}

const Part* part_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const PartRecord* record = part_record_of(*tensor.unsafeGetTensorImpl());
  return record == nullptr ? nullptr : &record->part_at(*tensor.unsafeGetTensorImpl());
}

std::shared_ptr<ShardGroup> shard_group_of(const at::Tensor& tensor) {
  const Part* part = part_of(tensor);
  return part == nullptr ? nullptr : part->shard_group;
}

bool follows(const at::Tensor& tensor, const at::Tensor& before) {
  const PartRecord* own = part_record_of(*tensor.unsafeGetTensorImpl());
  const PartRecord* other = part_record_of(*before.unsafeGetTensorImpl());
  return own != nullptr && other != nullptr && own->parts == other->parts &&
         own->first + tensor.storage_offset() ==
             other->first + before.storage_offset() + before.numel();
}

at::Tensor as_part(const at::Tensor& values, PartList parts, std::int64_t offset,
                   c10::DispatchKey key, std::weak_ptr<StorageOwner> owner) {
  LazyStorage storage(static_cast<std::int64_t>(values.nbytes()), values.device(), std::move(owner),
                      key, "", record_of(std::move(parts), offset));
  storage.attach(values);
  return storage.place(values.scalar_type(), 0, values.sizes(), values.strides());
}

at::Tensor as_part_like(const at::Tensor& values, const at::Tensor& part,
                        std::weak_ptr<StorageOwner> owner) {
  const PartRecord* record = part_record_of(*part.unsafeGetTensorImpl());
  if (record == nullptr) return values;
  return as_part(values, record->parts, record->first + part.storage_offset(), key(),
                 std::move(owner));
}

at::Tensor values_of(const at::Tensor& tensor) {
  if (part_record_of(*tensor.unsafeGetTensorImpl()) == nullptr) return tensor;
  return at::empty({0}, tensor.options())
      .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

namespace {

std::string_view short_name(const c10::OperatorHandle& operation) {
  std::string_view name = operation.schema().name();
  constexpr std::string_view prefix = "aten::";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

bool is_pointwise(const c10::OperatorHandle& operation) {
  return operation.hasTag(at::Tag::pointwise);
}

// Operations without LibTorch's tag `pointwise` that still treat elements independently, or read
// none. allclose() is here beside equal(), which has the tag: both compare this rank's elements.
// Views never reach this function.
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

// Results of clone() are ordinary tensors.
bool gives_parts(const c10::OperatorHandle& operation) {
  std::string_view name = short_name(operation);
  return name == "_to_copy" || (is_pointwise(operation) && name != "clone");
}

[[noreturn]] void refuse(const c10::OperatorHandle& operation, const Part& part) {
  throw InvalidArgument(formatted(
      "{}: {} is divided over {} ranks, and this operation would only use the elements {}..{} that "
      "are here, so every rank would get a different result; norms, clipping and loss scaling over "
      "all ranks: the handle's clip_grad_norm(), optim::gradient_norm(), optim::GradScaler; whole "
      "values: the handle's unsharded() or state_dict(); this rank's elements alone: clone()",
      operation.schema().name(), part.name, part.shard_group->size(), part.slice.range.begin,
      part.slice.range.end));
}

// The parts that one operation uses and that several ranks share. Constructed before the operation
// runs.
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
    const Part& part = record->part_at(tensor);
    if (part.shard_group->size() == 1) return;
    const c10::OperatorHandle& operation = call_.operation();
    bool is_apart = is_pointwise(operation) || is_known(short_name(operation));
    // Two parts of different sizes are broadcast, which combines an element with all elements of
    // the other part.
    bool is_spread = is_alone && first_ != nullptr && first_->sizes() != tensor.sizes();
    if (!is_apart || is_spread) refuse(operation, part);
    if (is_alone) first_ = &tensor;
    if (parts_ != nullptr || !gives_parts(operation)) return;
    parts_ = record->parts;
    offset_ = record->first + tensor.storage_offset();
  }

  const Call& call_;
  const c10::TensorImpl* first_ = nullptr;
  PartList parts_;           // of the results; null: not parts
  std::int64_t offset_ = 0;  // of the results in parts_
};

}  // namespace

void check_parts(Call& call) {
  if (call.kind() != Call::Kind::compute) return call.proceed();
  PartUse use(call);
  call.proceed();
  use.mark_results();
}

}  // namespace dispatch

}  // namespace lockstep
