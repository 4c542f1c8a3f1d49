// prepare_kept(): where the optimizers' memory comes from.
#include "optim/kept_storage.h"
#include "optim/kept_tensors.h"
#include "optim/slot.h"

#include <vector>

namespace lockstep::optim {
namespace {

at::Tensor scales_in(const KeptTensor& kept) {
  return kept.scales != nullptr ? *kept.scales : at::Tensor();
}

// What is kept already, perhaps loaded or of an earlier format.
void refit(KeptTensor& kept, const at::Tensor& dense, StateFormat format, at::ScalarType dtype) {
  at::Tensor& values = *kept.values;
  bool fits = values.scalar_type() == dtype && values.strides() == dense.strides() &&
              values.device() == dense.device();
  if (fits) return;
  at::Tensor plain = expanded(values, scales_in(kept), kept.codes);
  at::ScalarType wide = format == StateFormat::float32 ? dtype : at::kFloat;
  plain = laid_out_as(plain, dense, wide);
  if (format == StateFormat::float32) {
    values = plain;
    if (kept.scales != nullptr) kept.scales->reset();
    return;
  }
  Compressed small = compressed(plain, format, kept.codes);
  values = small.values;
  *kept.scales = small.scales;
}

// A new one begins with the parameter's values.
void prepare_masters(std::vector<Slot>& slots, StateMemory* memory) {
  std::vector<WantedTensor> wanted;
  for (Slot& slot : slots) {
    at::Tensor& master = *slot.master;
    if (!slot.has_16_bits()) {
      master.reset();
      continue;
    }
    if (master.defined()) master = laid_out_as(master, slot.dense, at::kFloat);
    if (master.defined() && !lies_elsewhere(master, memory)) continue;
    wanted.push_back({.dense = slot.dense,
                      .kept = {.values = &master},
                      .values = master.defined() ? master : slot.dense});
  }
  make_together(wanted, memory);
}

at::ScalarType kept_dtype(const Slot& slot, StateFormat format) {
  if (format != StateFormat::float32) return dtype_of(format);
  return slot.has_16_bits() ? at::kFloat : slot.dense.scalar_type();
}

}  // namespace

void prepare_kept(std::vector<Slot>& slots, StateFormat format, StateMemory* memory) {
  prepare_masters(slots, memory);
  for (std::size_t which = 0; which < slots.front().kept.size(); ++which) {
    std::vector<WantedTensor> wanted;
    for (Slot& slot : slots) {
      KeptTensor& kept = slot.kept[which];
      if (kept.values == nullptr) continue;
      StateFormat own = kept.scales != nullptr ? format : StateFormat::float32;
      at::ScalarType dtype = kept_dtype(slot, own);
      if (kept.values->defined()) refit(kept, slot.dense, own, dtype);
      if (kept.values->defined() && !lies_elsewhere(*kept.values, memory)) continue;
      wanted.push_back({slot.dense, kept, dtype, *kept.values, scales_in(kept)});
    }
    make_together(wanted, memory);
  }
}

}  // namespace lockstep::optim
