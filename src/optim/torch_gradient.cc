#include "optim/torch_gradient.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace lockstep::optim {

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
