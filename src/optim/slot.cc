#include "optim/slot.h"

#include <lockstep/base/check.h>

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
        "{}: parameter {} of group {} has a sparse gradient; dense ones are updated here",
        step.optimizer, i, step.group);
  check(at::isFloatingType(parameter.scalar_type()),
        "{}: parameter {} of group {}: expected floating-point numbers, found {}", step.optimizer,
        i, step.group, c10::toString(parameter.scalar_type()));
  check(step.update.state == StateFormat::float32 || is_for_kernel(parameter),
        "{}: parameter {} of group {}: a state in fewer than 32 bits is kept for float32, bfloat16 "
        "and float16 on the CPU, found {} on {}",
        step.optimizer, i, step.group, c10::toString(parameter.scalar_type()),
        parameter.device().str());
}

// float32 and the parameter's own dtype are what the kernels read.
at::ScalarType gradient_dtype(const Slot& slot) {
  at::ScalarType own = slot.dense.scalar_type();
  bool is_float = slot.parameter.grad().scalar_type() == at::kFloat;
  return slot.has_16_bits() && is_float ? at::kFloat : own;
}

// A gradient that is computed where it is used stays so, if a kernel can take it as it comes.
void take_gradient(Slot& slot, const GroupStep& step) {
  const at::Tensor& gradient = slot.parameter.grad();
  at::ScalarType dtype = gradient_dtype(slot);
  bool fits = slot.is_for_kernel() && gradient.scalar_type() == dtype &&
              gradient.strides() == slot.dense.strides();
  if (fits) slot.source = dispatch::source_of(gradient);
  if (!slot.source) dispatch::bring(gradient, step.optimizer, /*writes=*/false);
  slot.gradient = slot.source ? gradient : laid_out_as(gradient, slot.dense, dtype);
}

}  // namespace

bool Slot::has_16_bits() const { return is_16_bits(parameter.scalar_type()); }
bool Slot::is_for_kernel() const { return optim::is_for_kernel(parameter); }

at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like, at::ScalarType dtype) {
  bool fits = tensor.strides() == like.strides() && tensor.scalar_type() == dtype &&
              tensor.device() == like.device();
  return fits ? tensor : at::empty_like(like, like.options().dtype(dtype)).copy_(tensor);
}

std::vector<Slot> make_slots(const std::vector<at::Tensor>& parameters, const GroupStep& step) {
  std::vector<Slot> slots;
  std::int64_t place = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    std::int64_t begin = place;
    place += parameter.numel();
    if (!parameter.grad().defined()) continue;
    check_parameter(parameter, i, step);
    dispatch::bring(parameter, step.optimizer, /*writes=*/true);
    Slot& slot = slots.emplace_back();
    slot.parameter = slot.dense = parameter;
    if (!parameter.is_non_overlapping_and_dense()) slot.dense = parameter.contiguous();
    take_gradient(slot, step);
    slot.place = begin;
  }
  return slots;
}

void copy_back(std::vector<Slot>& slots) {
  for (Slot& slot : slots) {
    if (!slot.dense.is_same(slot.parameter)) {
      slot.parameter.copy_(slot.dense);
    } else if (!slot.parameter.is_inference()) {
      // Kernels write past LibTorch: say that the values are others now, as its own operations do.
      slot.parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
}

at::Tensor updated_tensor(const Slot& slot) {
  if (!slot.has_16_bits()) return slot.dense;
  // As follow_bfloat16() of formats_kernel.h: what was written from outside counts.
  at::Tensor same = slot.master->to(slot.dense.scalar_type()).eq(slot.dense);
  slot.master->copy_(at::where(same, *slot.master, slot.dense.to(at::kFloat)));
  return *slot.master;
}

at::Tensor treated_gradient(const Slot& slot, const ElementTreatment& treatment) {
  at::ScalarType dtype = slot.has_16_bits() ? at::kFloat : slot.dense.scalar_type();
  at::Tensor gradient = laid_out_as(slot.gradient, slot.dense, dtype);
  if (treatment.is_none()) return gradient;
  gradient = gradient * treatment.factor;
  if (std::isfinite(treatment.limit)) gradient.clamp_(-treatment.limit, treatment.limit);
  return gradient;
}

void publish_master(const Slot& slot) {
  if (slot.has_16_bits()) slot.dense.copy_(*slot.master);
}

}  // namespace lockstep::optim
