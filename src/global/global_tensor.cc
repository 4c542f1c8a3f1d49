#include "global/global_tensor.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"
#include "global/convert.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>

namespace lockstep::global {
namespace {

bool has_partial(std::span<const Placement> placements) {
  return std::ranges::any_of(placements, [](Placement one) { return one.is_partial(); });
}

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

}  // namespace

void GlobalTensor::run(dispatch::Call& call) { run_operation(call, *this); }

at::Tensor GlobalTensor::in_memory(at::Tensor memory) const {
  at::Tensor tensor = wrap(std::move(memory), spec, mesh);
  GlobalTensor& other = *global_of(tensor);
  other.base_ = base_;
  other.is_copy_ = is_copy_;
  other.source_ = source_;
  other.writes_of_source_ = writes_of_source_;
  return tensor;
}

// A tensor that is recomputed in backward shares the reduced values, unless its memory was written:
// the recomputed values may differ then.
std::function<at::Tensor(at::Tensor memory)> GlobalTensor::maker() {
  std::weak_ptr<Reduced> known;
  if (has_partial(spec->placements) && !is_shared() && count_writes() == 0) known = reduced();
  return [spec = spec, mesh = mesh, known](at::Tensor memory) {
    at::Tensor tensor = wrap(std::move(memory), spec, mesh);
    if (is_in_backward()) global_of(tensor)->reduced_ = known.lock();
    return tensor;
  };
}

std::shared_ptr<GlobalTensor::Reduced> GlobalTensor::reduced() {
  std::lock_guard lock(mutex_);
  if (!reduced_) reduced_ = std::make_shared<Reduced>();
  return reduced_;
}

void GlobalTensor::forget_reduced() {
  std::lock_guard lock(mutex_);
  reduced_.reset();
}

void GlobalTensor::set_base(GlobalTensor& base) {
  using Pointer = c10::intrusive_ptr<GlobalTensor>;
  base_ = Pointer::unsafe_reclaim_from_nonowning(&base.owner());
  is_copy_ = base.is_copy_;
}

void GlobalTensor::set_copy_of(GlobalTensor& base) {
  using Pointer = c10::intrusive_ptr<GlobalTensor>;
  is_copy_ = true;
  source_ = Pointer::unsafe_reclaim_from_nonowning(&base.owner());
  writes_of_source_ = base.count_writes();
}

bool GlobalTensor::differs_from_source() {
  return source_ && (source_->count_writes() != writes_of_source_ || source_->is_stale());
}

void GlobalTensor::share_with_plain() {
  owner().is_shared_.store(true, std::memory_order_relaxed);
  forget_reduced();
}

std::uint64_t GlobalTensor::count_writes() {
  GlobalTensor& memory = owner();
  std::uint64_t count = memory.writes_.load(std::memory_order_relaxed);
  bool counts_too =
      memory.is_shared_.load(std::memory_order_relaxed) && !memory.local.is_inference();
  return counts_too ? count + memory.local._version() : count;
}

void GlobalTensor::begin_write() {
  GlobalTensor& memory = owner();
  memory.writes_.fetch_add(1, std::memory_order_relaxed);
  if (memory.is_shared_.load(std::memory_order_relaxed) && !memory.local.is_inference())
    memory.local.unsafeGetTensorImpl()->bump_version();
  forget_reduced();
}

GlobalTensor* global_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return static_cast<GlobalTensor*>(
      dispatch::delegate_of(*tensor.unsafeGetTensorImpl(), dispatch::key()));
}

GlobalTensor& expect_global(const at::Tensor& tensor, const char* what) {
  GlobalTensor* found = global_of(tensor);
  check(found != nullptr, "{}: expected a global tensor, found {}; distribute() makes one", what,
        tensor.defined() ? "a plain one" : "an undefined one");
  return *found;
}

void check_is_fresh(GlobalTensor& tensor, std::string_view operation) {
  check(!tensor.is_stale(),
        "{}: this view is a redistributed copy of its base, which has been written since; make the "
        "view again after the write, or clone() it before",
        operation);
}

at::Tensor wrap(at::Tensor local, const SpecPtr& spec, const Mesh& mesh) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      spec->keys, c10::scalarTypeToTypeMeta(spec->dtype), spec->device);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(spec->sizes, spec->strides);
  impl->set_storage_access_should_throw();
  impl->set_backend_meta(c10::make_intrusive<GlobalTensor>(std::move(local), spec, mesh));
  return tensor;
}

at::Tensor values_in(const at::Tensor& tensor, std::span<const Placement> placements) {
  GlobalTensor& global = *global_of(tensor);
  const Spec& spec = *global.spec;
  if (std::ranges::equal(spec.placements, placements)) return global.local;
  if (!has_partial(spec.placements) || has_partial(placements))
    return converted(global.local, spec, placements);
  // A write through a plain tensor may go unnoticed. With lazy memory, the reduced values would
  // outlive the memory; only backward() is safe, because it releases tensors after use.
  const bool is_lazy = dispatch::is_lazy(global.local);
  if (global.is_shared() || (is_lazy && !is_in_backward()))
    return converted(global.local, spec, placements);
  std::optional<dispatch::MemoryUse> use;  // recomputation for it may already reduce the tensor
  if (is_lazy) use.emplace(global.local, "global tensor");
  const std::uint64_t writes = global.count_writes();
  const auto reduced = global.reduced();
  std::lock_guard lock(reduced->mutex);
  const bool is_there = reduced->local.defined() && reduced->writes == writes &&
                        std::ranges::equal(reduced->placements, placements);
  if (!is_there) {
    reduced->placements.assign(placements.begin(), placements.end());
    reduced->writes = writes;
    reduced->local.reset();
    reduced->local = converted(global.local, spec, placements);
  }
  return reduced->local;
}

at::Tensor local_values(const at::Tensor& tensor) {
  GlobalTensor* found = global_of(tensor);
  if (found == nullptr) return tensor;
  check_is_fresh(*found, "local_values");
  return found->local;
}

at::Tensor plain(const at::Tensor& tensor) {
  return global_of(tensor) == nullptr ? tensor : full_tensor(tensor);
}

void begin_write(const at::Tensor& tensor) {
  if (GlobalTensor* found = global_of(tensor)) found->begin_write();
}

void settle_gradient(const at::Tensor& parameter) {
  GlobalTensor* found = global_of(parameter);
  if (found == nullptr) return;
  const PlacementList& wanted = found->spec->placements;
  const at::Tensor& gradient = parameter.grad();
  const auto& now = expect_global(gradient, "gradient of a global parameter").spec->placements;
  if (std::ranges::equal(now, wanted)) return;
  at::NoGradGuard no_grad;
  parameter.mutable_grad() =
      redistribute(gradient.detach(), Placements(wanted.begin(), wanted.end()));
}

std::vector<Group> groups_that_cut(const at::Tensor& tensor) {
  std::vector<Group> groups;
  GlobalTensor* found = global_of(tensor);
  if (found == nullptr) return groups;
  MeshContext& context = *found->spec->context;
  for (int axis = 0; axis < context.axes(); ++axis) {
    auto place = static_cast<std::size_t>(axis);
    if (found->spec->placements[place].is_shard() && context.place()[place].size > 1)
      groups.push_back(context.group(axis));
  }
  return groups;
}

}  // namespace lockstep::global
