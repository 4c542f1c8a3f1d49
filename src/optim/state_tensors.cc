#include "optim/state_tensors.h"

#include "base/check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace lockstep::optim {

// Formats.

StateFormat format_of(const at::Tensor& values) {
  if (values.scalar_type() == at::kByte) return StateFormat::blockwise;
  return values.scalar_type() == at::kBFloat16 ? StateFormat::bfloat16 : StateFormat::float32;
}

at::ScalarType dtype_of(StateFormat format) {
  if (format == StateFormat::blockwise) return at::kByte;
  return format == StateFormat::bfloat16 ? at::kBFloat16 : at::kFloat;
}

std::int64_t scales_of(StateFormat format, std::int64_t count) {
  return format == StateFormat::blockwise ? (count + block_elements - 1) / block_elements : 0;
}

at::Tensor expanded(const at::Tensor& values, const at::Tensor& scales, Codes codes) {
  if (values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kHalf)
    return values.to(at::kFloat);
  if (format_of(values) != StateFormat::blockwise) return values;
  at::Tensor plain = at::empty_like(values, values.options().dtype(at::kFloat));
  read_blocks(codes, values.const_data_ptr<std::uint8_t>(), scales.const_data_ptr<float>(),
              plain.mutable_data_ptr<float>(), values.numel());
  return plain;
}

Compressed compressed(const at::Tensor& plain, StateFormat format, Codes codes) {
  if (format != StateFormat::blockwise) return {plain.to(dtype_of(format)), {}};
  at::Tensor values = at::empty_like(plain, plain.options().dtype(at::kByte));
  at::Tensor scales = at::empty({scales_of(format, plain.numel())}, at::kFloat);
  write_blocks(codes, plain.const_data_ptr<float>(), values.mutable_data_ptr<std::uint8_t>(),
               scales.mutable_data_ptr<float>(), plain.numel(), nullptr);
  return {values, scales};
}

// Storage.

void advise_huge_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t page = 2 << 20;
  auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  std::uintptr_t end = (begin + tensor.nbytes()) / page * page;
  begin = (begin + page - 1) / page * page;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

namespace {

constexpr std::int64_t aligned_elements = 64;  // at least a cache line, in every format

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

// Offsets in elements from the start of the storages.
struct Offsets {
  std::vector<std::int64_t> values, scales;
  std::int64_t count = 0, scale_count = 0;
};

std::int64_t scales_for(const WantedTensor& one) {
  bool in_blocks = one.dtype == dtype_of(StateFormat::blockwise);
  return in_blocks ? scales_of(StateFormat::blockwise, one.dense.numel()) : 0;
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

// All tensors have the same dtype and device.
void make_storage(const std::vector<WantedTensor>& wanted, StateMemory* memory) {
  Offsets offsets = offsets_of(wanted);
  c10::Device device = wanted.front().dense.device();
  at::Tensor values = zeros_in(memory, offsets.count, wanted.front().dtype, device);
  at::Tensor scales = offsets.scale_count > 0
                          ? zeros_in(memory, offsets.scale_count, at::kFloat, device)
                          : at::Tensor();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [dense, state, dtype, old_values, old_scales] = wanted[i];
    *state.values = values.as_strided(dense.sizes(), dense.strides(), offsets.values[i]);
    if (scales.defined())
      *state.scales = scales.narrow(0, offsets.scales[i], scales_for(wanted[i]));
    if (!old_values.defined()) continue;
    state.values->copy_(old_values);
    if (old_scales.defined()) state.scales->copy_(old_scales);
    if (memory != nullptr) memory->has_used(*state.values);
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

// Preparation before an update.

namespace {

at::Tensor scales_in(const StateTensor& state) {
  return state.scales != nullptr ? *state.scales : at::Tensor();
}

// Converts existing state, which may be loaded or in an earlier format.
void refit(StateTensor& state, const at::Tensor& dense, StateFormat format, at::ScalarType dtype) {
  at::Tensor& values = *state.values;
  bool fits = values.scalar_type() == dtype && values.strides() == dense.strides() &&
              values.device() == dense.device();
  if (fits) return;
  at::Tensor plain = expanded(values, scales_in(state), state.codes);
  at::ScalarType wide = format == StateFormat::float32 ? dtype : at::kFloat;
  plain = laid_out_as(plain, dense, wide);
  if (format == StateFormat::float32) {
    values = plain;
    if (state.scales != nullptr) state.scales->reset();
    return;
  }
  Compressed small = compressed(plain, format, state.codes);
  values = small.values;
  *state.scales = small.scales;
}

// A new master begins with the parameter's values.
void prepare_masters(std::vector<UpdateEntry>& entries, StateMemory* memory) {
  std::vector<WantedTensor> wanted;
  for (UpdateEntry& entry : entries) {
    at::Tensor& master = *entry.master;
    if (!entry.has_16_bits()) {
      master.reset();
      continue;
    }
    if (master.defined()) master = laid_out_as(master, entry.dense, at::kFloat);
    if (master.defined() && !lies_elsewhere(master, memory)) continue;
    wanted.push_back({.dense = entry.dense,
                      .state = {.values = &master},
                      .values = master.defined() ? master : entry.dense});
  }
  make_together(wanted, memory);
}

at::ScalarType state_dtype(const UpdateEntry& entry, StateFormat format) {
  if (format != StateFormat::float32) return dtype_of(format);
  return entry.has_16_bits() ? at::kFloat : entry.dense.scalar_type();
}

}  // namespace

void check_state(const std::vector<UpdateEntry>& entries, const GroupStep& step) {
  for (const UpdateEntry& entry : entries) {
    const auto check_one = [&](const at::Tensor* kept) {
      if (kept == nullptr || !kept->defined()) return;
      check(kept->sizes() == entry.dense.sizes(),
            "{}: parameter {} of group {}: expected a state with the sizes of this rank's part, "
            "[{}], found [{}]: the state was saved with other parts",
            step.optimizer, entry.number, step.group, listed(entry.dense.sizes(), ", "),
            listed(kept->sizes(), ", "));
    };
    check_one(entry.master);
    for (const StateTensor& state : entry.state) check_one(state.values);
  }
}

void prepare_state(std::vector<UpdateEntry>& entries, StateFormat format, StateMemory* memory) {
  prepare_masters(entries, memory);
  for (std::size_t which = 0; which < entries.front().state.size(); ++which) {
    std::vector<WantedTensor> wanted;
    for (UpdateEntry& entry : entries) {
      StateTensor& state = entry.state[which];
      if (state.values == nullptr) continue;
      StateFormat own = state.scales != nullptr ? format : StateFormat::float32;
      at::ScalarType dtype = state_dtype(entry, own);
      if (state.values->defined()) refit(state, entry.dense, own, dtype);
      if (state.values->defined() && !lies_elsewhere(*state.values, memory)) continue;
      wanted.push_back({entry.dense, state, dtype, *state.values, scales_in(state)});
    }
    make_together(wanted, memory);
  }
}

// Batches around the update.

namespace {

constexpr std::size_t batch_bytes = std::size_t{32} << 20;  // parameters, gradients and state

// Calls use(tensor) for every tensor that an update of the entry reads or writes.
template <class Use>
void for_each_tensor(const UpdateEntry& entry, const Use& use) {
  use(entry.dense);
  if (!entry.source) use(entry.gradient);
  if (entry.has_16_bits()) use(*entry.master);
  for (const StateTensor& state : entry.state)
    for (const at::Tensor* tensor : {state.values, state.scales})
      if (tensor != nullptr && tensor->defined()) use(*tensor);
}

// Returns the index of the first entry after the batch that starts at `begin`.
std::size_t end_of_batch(const std::vector<UpdateEntry>& entries, std::size_t begin) {
  std::size_t bytes = 0, end = begin;
  while (end < entries.size() && (end == begin || bytes < batch_bytes))
    for_each_tensor(entries[end++], [&](const at::Tensor& tensor) { bytes += tensor.nbytes(); });
  return end;
}

}  // namespace

void in_batches(std::vector<UpdateEntry>& entries, StateMemory* memory,
                const std::function<void(std::vector<UpdateEntry>&)>& update) {
  if (memory == nullptr) return update(entries);
  auto entry = [&](std::size_t i) {
    return std::make_move_iterator(entries.begin() + static_cast<std::ptrdiff_t>(i));
  };
  std::size_t begin = 0, end = end_of_batch(entries, 0);
  while (begin < entries.size()) {
    std::size_t next_end = end_of_batch(entries, end);
    for (std::size_t next = end; next < next_end; ++next)
      for_each_tensor(entries[next], [&](const at::Tensor& tensor) { memory->will_use(tensor); });
    std::vector<UpdateEntry> some(entry(begin), entry(end));
    update(some);
    for (const UpdateEntry& used : some)
      for_each_tensor(used, [&](const at::Tensor& tensor) { memory->has_used(tensor); });
    begin = std::exchange(end, next_end);
  }
}

}  // namespace lockstep::optim
