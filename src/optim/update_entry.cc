#include "optim/update_entry.h"

#include "base/check.h"
#include "global/global_tensor.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace lockstep::optim {
namespace {

bool is_16_bits(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

bool is_for_kernel(const at::Tensor& parameter) {
  at::ScalarType dtype = parameter.scalar_type();
  return parameter.device().is_cpu() && (dtype == at::kFloat || is_16_bits(dtype));
}

void check_parameter(const at::Tensor& parameter, std::size_t i, const GroupStep& step) {
  const at::Tensor& gradient = parameter.grad();
  check(gradient.layout() == at::kStrided,
        "{}: parameter {} of group {} has a sparse gradient; only dense gradients are supported",
        step.optimizer, i, step.group);
  check(at::isFloatingType(parameter.scalar_type()),
        "{}: parameter {} of group {}: expected floating-point numbers, found {}", step.optimizer,
        i, step.group, c10::toString(parameter.scalar_type()));
  check(step.update.state == StateFormat::float32 || is_for_kernel(parameter),
        "{}: parameter {} of group {}: a state in fewer than 32 bits needs float32, bfloat16 or "
        "float16 on the CPU, found {} on {}",
        step.optimizer, i, step.group, c10::toString(parameter.scalar_type()),
        parameter.device().str());
}

// The kernels read float32 and the parameter's own dtype.
at::ScalarType gradient_dtype(const UpdateEntry& entry) {
  at::ScalarType own = entry.dense.scalar_type();
  bool is_float = entry.parameter.grad().scalar_type() == at::kFloat;
  return entry.has_16_bits() && is_float ? at::kFloat : own;
}

// A gradient that is computed on the fly stays so, if a kernel can consume it directly.
void take_gradient(UpdateEntry& entry, const GroupStep& step) {
  const at::Tensor gradient = global::local_values(entry.parameter.grad());
  at::ScalarType dtype = gradient_dtype(entry);
  bool fits = entry.is_for_kernel() && gradient.scalar_type() == dtype &&
              gradient.strides() == entry.dense.strides();
  if (fits) entry.source = dispatch::source_of(gradient);
  if (!entry.source) dispatch::bring(gradient, step.optimizer, /*writes=*/false);
  entry.gradient = entry.source ? gradient : laid_out_as(gradient, entry.dense, dtype);
}

}  // namespace

bool UpdateEntry::has_16_bits() const { return is_16_bits(parameter.scalar_type()); }
bool UpdateEntry::is_for_kernel() const { return optim::is_for_kernel(parameter); }

at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like, at::ScalarType dtype) {
  bool fits = tensor.strides() == like.strides() && tensor.scalar_type() == dtype &&
              tensor.device() == like.device();
  return fits ? tensor : at::empty_like(like, like.options().dtype(dtype)).copy_(tensor);
}

std::vector<UpdateEntry> make_entries(const std::vector<at::Tensor>& parameters,
                                      const GroupStep& step) {
  std::vector<UpdateEntry> entries;
  std::int64_t place = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    std::int64_t begin = place;
    place += parameter.numel();
    if (!parameter.grad().defined()) continue;
    check_parameter(parameter, i, step);
    dispatch::bring(parameter, step.optimizer, /*writes=*/true);
    global::settle_gradient(parameter);
    global::begin_write(parameter);
    UpdateEntry& entry = entries.emplace_back();
    entry.parameter = parameter;
    entry.local = entry.dense = global::local_values(parameter);
    if (!entry.local.is_non_overlapping_and_dense()) entry.dense = entry.local.contiguous();
    take_gradient(entry, step);
    entry.place = begin;
    entry.number = i;
  }
  return entries;
}

void copy_back(std::vector<UpdateEntry>& entries) {
  for (UpdateEntry& entry : entries) {
    bool is_copied = !entry.dense.is_same(entry.local);
    if (is_copied) entry.local.copy_(entry.dense);
    // Kernels bypass LibTorch, so bump the version as LibTorch's in-place operations do.
    bool is_known = is_copied && entry.local.is_same(entry.parameter);
    if (!is_known && !entry.parameter.is_inference())
      entry.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

at::Tensor updated_tensor(const UpdateEntry& entry) {
  if (!entry.has_16_bits()) return entry.dense;
  // As follow_bfloat16() of formats_kernel.h: values that were written from outside replace the
  // master's.
  at::Tensor same = entry.master->to(entry.dense.scalar_type()).eq(entry.dense);
  entry.master->copy_(at::where(same, *entry.master, entry.dense.to(at::kFloat)));
  return *entry.master;
}

at::Tensor transformed_gradient(const UpdateEntry& entry, const ElementTransform& transform) {
  at::ScalarType dtype = entry.has_16_bits() ? at::kFloat : entry.dense.scalar_type();
  at::Tensor gradient = laid_out_as(entry.gradient, entry.dense, dtype);
  if (transform.is_none()) return gradient;
  gradient = gradient * transform.factor;
  if (std::isfinite(transform.limit)) gradient.clamp_(-transform.limit, transform.limit);
  return gradient;
}

void publish_master(const UpdateEntry& entry) {
  if (entry.has_16_bits()) entry.dense.copy_(*entry.master);
}

}  // namespace lockstep::optim
