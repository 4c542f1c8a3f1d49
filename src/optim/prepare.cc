// prepare_kept(): where the optimizers' memory comes from.
#include "optim/kept_tensors.h"
#include "optim/slot.h"

#include <lockstep/optim/state_memory.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr std::int64_t aligned_elements = 64;  // a cache line at least, in every format

// Large states are walked through from end to end: fewer pages are fewer misses of the page table's
// cache. Only advice, and only before the first touch.
void advise_huge_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t page = 2 << 20;
  auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  std::uintptr_t end = (begin + tensor.nbytes()) / page * page;
  begin = (begin + page - 1) / page * page;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

at::Tensor zeros_in(StateMemory* memory, std::int64_t count, at::ScalarType dtype,
                    c10::Device device) {
  if (memory != nullptr && device.is_cpu()) return memory->zeros(count, dtype);
  auto options = at::TensorOptions(dtype).device(device);
  if (!device.is_cpu()) return at::zeros({count}, options);
  at::Tensor zeros = at::empty({count}, options);
  advise_huge_pages(zeros);
  return zeros.zero_();
}

// A tensor of state that is to be made.
struct Missing {
  const Slot* slot;
  KeptTensor kept;
  at::Tensor values, scales;  // what is kept elsewhere until now; else undefined
  std::int64_t offset = 0;
  std::int64_t scale_offset = 0;
};

bool lies_behind(const at::Tensor& second, const at::Tensor& first) {
  return static_cast<const char*>(second.const_data_ptr()) ==
         static_cast<const char*>(first.const_data_ptr()) + first.nbytes();
}

// Gives all of `missing` (one dtype and device) places in one storage: side by side where the
// parameters are, so that runs can merge.
void make_zeros(std::vector<Missing>& missing, StateFormat format, at::ScalarType dtype,
                StateMemory* memory) {
  std::int64_t count = 0, scales = 0;
  const at::Tensor* last = nullptr;
  for (Missing& one : missing) {
    const at::Tensor& dense = one.slot->dense;
    bool apart = last != nullptr && !lies_behind(dense, *last);
    if (dense.numel() > 0 && apart)
      count = (count + aligned_elements - 1) / aligned_elements * aligned_elements;
    if (dense.numel() > 0) last = &dense;  // an empty tensor has no address
    one.offset = count;
    one.scale_offset = scales;
    count += dense.numel();
    scales += scales_of(format, dense.numel());
  }
  c10::Device device = missing.front().slot->dense.device();
  at::Tensor values = zeros_in(memory, count, dtype, device);
  at::Tensor all_scales = scales > 0 ? zeros_in(memory, scales, at::kFloat, device) : at::Tensor();
  for (Missing& one : missing) {
    const at::Tensor& dense = one.slot->dense;
    *one.kept.values = values.as_strided(dense.sizes(), dense.strides(), one.offset);
    if (scales > 0 && one.kept.scales != nullptr)
      *one.kept.scales = all_scales.narrow(0, one.scale_offset, scales_of(format, dense.numel()));
    if (!one.values.defined()) continue;
    one.kept.values->copy_(one.values);
    if (one.scales.defined()) one.kept.scales->copy_(one.scales);
    memory->has_used(*one.kept.values);
  }
}

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

// Than where it is to be.
bool lies_elsewhere(const at::Tensor& values, const StateMemory* memory) {
  return memory != nullptr && values.is_cpu() && values.numel() > 0 && !memory->holds(values);
}

void prepare_master(Slot& slot) {
  if (!slot.has_16_bits()) return slot.master->reset();
  const at::Tensor& from = slot.master->defined() ? *slot.master : slot.dense;
  *slot.master = laid_out_as(from, slot.dense, at::kFloat);
}

at::ScalarType kept_dtype(const Slot& slot, StateFormat format) {
  if (format != StateFormat::float32) return dtype_of(format);
  return slot.has_16_bits() ? at::kFloat : slot.dense.scalar_type();
}

}  // namespace

void prepare_kept(std::vector<Slot>& slots, StateFormat format, StateMemory* memory) {
  for (Slot& slot : slots) prepare_master(slot);
  for (std::size_t which = 0; which < slots.front().kept.size(); ++which) {
    std::vector<std::vector<Missing>> missing;  // by dtype and device
    for (Slot& slot : slots) {
      KeptTensor& kept = slot.kept[which];
      if (kept.values == nullptr) continue;
      StateFormat own = kept.scales != nullptr ? format : StateFormat::float32;
      if (kept.values->defined()) refit(kept, slot.dense, own, kept_dtype(slot, own));
      if (kept.values->defined() && !lies_elsewhere(*kept.values, memory)) continue;
      auto same = [&](const std::vector<Missing>& all) {
        const at::Tensor& first = all.front().slot->dense;
        return first.device() == slot.dense.device() &&
               kept_dtype(*all.front().slot, own) == kept_dtype(slot, own);
      };
      auto found = std::find_if(missing.begin(), missing.end(), same);
      if (found == missing.end()) found = missing.emplace(missing.end());
      found->push_back({&slot, kept, *kept.values, scales_in(kept)});
    }
    for (std::vector<Missing>& all : missing) {
      const Slot& first = *all.front().slot;
      StateFormat own = all.front().kept.scales != nullptr ? format : StateFormat::float32;
      make_zeros(all, own, kept_dtype(first, own), memory);
    }
  }
}

}  // namespace lockstep::optim
