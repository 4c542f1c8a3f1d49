#include "optim/kept_storage.h"

#include "optim/kept_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <sys/mman.h>

#include <algorithm>

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

bool lies_behind(const at::Tensor& second, const at::Tensor& first) {
  return static_cast<const char*>(second.const_data_ptr()) ==
         static_cast<const char*>(first.const_data_ptr()) + first.nbytes();
}

// In elements, from the begin of the storages.
struct Offsets {
  std::vector<std::int64_t> values, scales;
  std::int64_t count = 0, scale_count = 0;
};

std::int64_t scales_for(const WantedTensor& one) {
  bool in_blocks = one.dtype == dtype_of(StateFormat::blocks);
  return in_blocks ? scales_of(StateFormat::blocks, one.dense.numel()) : 0;
}

Offsets offsets_of(const std::vector<WantedTensor>& wanted) {
  Offsets offsets;
  const at::Tensor* last = nullptr;
  for (const WantedTensor& one : wanted) {
    bool apart = last != nullptr && !lies_behind(one.dense, *last);
    if (one.dense.numel() > 0 && apart)
      offsets.count = (offsets.count + aligned_elements - 1) / aligned_elements * aligned_elements;
    if (one.dense.numel() > 0) last = &one.dense;  // an empty tensor has no address
    offsets.values.push_back(offsets.count);
    offsets.scales.push_back(offsets.scale_count);
    offsets.count += one.dense.numel();
    offsets.scale_count += scales_for(one);
  }
  return offsets;
}

// All of one dtype and device.
void make_storage(const std::vector<WantedTensor>& wanted, StateMemory* memory) {
  Offsets offsets = offsets_of(wanted);
  c10::Device device = wanted.front().dense.device();
  at::Tensor values = zeros_in(memory, offsets.count, wanted.front().dtype, device);
  at::Tensor scales = offsets.scale_count > 0
                          ? zeros_in(memory, offsets.scale_count, at::kFloat, device)
                          : at::Tensor();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [dense, kept, dtype, old_values, old_scales] = wanted[i];
    *kept.values = values.as_strided(dense.sizes(), dense.strides(), offsets.values[i]);
    if (scales.defined()) *kept.scales = scales.narrow(0, offsets.scales[i], scales_for(wanted[i]));
    if (!old_values.defined()) continue;
    kept.values->copy_(old_values);
    if (old_scales.defined()) kept.scales->copy_(old_scales);
    if (memory != nullptr) memory->has_used(*kept.values);
  }
}

}  // namespace

void make_together(const std::vector<WantedTensor>& wanted, StateMemory* memory) {
  std::vector<std::vector<WantedTensor>> storages;
  for (const WantedTensor& one : wanted) {
    auto same = [&](const std::vector<WantedTensor>& all) {
      const WantedTensor& first = all.front();
      return first.dtype == one.dtype && first.dense.device() == one.dense.device();
    };
    auto found = std::ranges::find_if(storages, same);
    if (found == storages.end()) found = storages.emplace(storages.end());
    found->push_back(one);
  }
  for (const auto& all : storages) make_storage(all, memory);
}

bool lies_elsewhere(const at::Tensor& values, const StateMemory* memory) {
  return memory != nullptr && values.is_cpu() && values.numel() > 0 && !memory->holds(values);
}

}  // namespace lockstep::optim
