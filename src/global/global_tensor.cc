#include "global/global_tensor.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "global/convert.h"
#include "global/run.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>

namespace lockstep::global {
namespace {

bool has_partial(std::span<const Placement> placements) {
  return std::ranges::any_of(placements, [](Placement one) { return one.is_partial(); });
}

}  // namespace

void GlobalTensor::run(dispatch::Call& call) { run_operation(call, *this); }

GlobalTensor* global_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return static_cast<GlobalTensor*>(
      dispatch::carrier_of(*tensor.unsafeGetTensorImpl(), dispatch::key()));
}

GlobalTensor& expect_global(const at::Tensor& tensor, const char* what) {
  GlobalTensor* found = global_of(tensor);
  check(found != nullptr, "{}: expected a global tensor, found {}; distribute() makes one", what,
        tensor.defined() ? "a plain one" : "an undefined one");
  return *found;
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
  std::uint32_t version =
      tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  std::lock_guard lock(global.mutex);
  auto& reduced = global.reduced;
  bool is_there = reduced && reduced->version == version &&
                  std::ranges::equal(reduced->placements, placements) && !tensor.is_inference();
  if (!is_there) {
    reduced = std::make_unique<GlobalTensor::Reduced>();
    reduced->placements.assign(placements.begin(), placements.end());
    reduced->version = version;
    reduced->local = converted(global.local, spec, placements);
  }
  return reduced->local;
}

}  // namespace lockstep::global
