// An update whose state lies in a StateMemory goes through the slots in stretches, so that only one
// of them, and the next one on its way, need be in memory.
#pragma once

#include "optim/slot.h"

#include <lockstep/optim/state_memory.h>

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace lockstep::optim {

inline constexpr std::size_t stretch_bytes = std::size_t{32}
                                             << 20;  // parameters, gradients and state

// Calls use(tensor) for what an update of the slot reads and writes.
template <class Use>
void for_each_tensor(const Slot& slot, const Use& use) {
  use(slot.dense);
  if (!slot.source) use(slot.gradient);
  if (slot.has_16_bits()) use(*slot.master);
  for (const KeptTensor& kept : slot.kept)
    for (const at::Tensor* tensor : {kept.values, kept.scales})
      if (tensor != nullptr && tensor->defined()) use(*tensor);
}

// The number of the first slot after a stretch that begins with `begin`.
inline std::size_t end_of_stretch(const std::vector<Slot>& slots, std::size_t begin) {
  std::size_t bytes = 0, end = begin;
  while (end < slots.size() && (end == begin || bytes < stretch_bytes))
    for_each_tensor(slots[end++], [&](const at::Tensor& tensor) { bytes += tensor.nbytes(); });
  return end;
}

// Calls update(some of the slots) until all have had their turn, in order. Slots are prepared.
template <class Update>
void in_stretches(std::vector<Slot>& slots, StateMemory* memory, const Update& update) {
  if (memory == nullptr) return update(slots);
  auto slot = [&](std::size_t i) {
    return std::make_move_iterator(slots.begin() + static_cast<std::ptrdiff_t>(i));
  };
  std::size_t begin = 0, end = end_of_stretch(slots, 0);
  while (begin < slots.size()) {
    std::size_t next_end = end_of_stretch(slots, end);
    for (std::size_t next = end; next < next_end; ++next)
      for_each_tensor(slots[next], [&](const at::Tensor& tensor) { memory->will_use(tensor); });
    std::vector<Slot> some(slot(begin), slot(end));
    update(some);
    for (const Slot& used : some)
      for_each_tensor(used, [&](const at::Tensor& tensor) { memory->has_used(tensor); });
    begin = std::exchange(end, next_end);
  }
}

}  // namespace lockstep::optim
