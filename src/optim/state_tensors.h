// What optimizers keep of parameters: tensors of state in their formats, where they are made, and
// in which order a step goes through them.
#pragma once

#include "optim/formats_kernel.h"
#include "optim/update_entry.h"

#include <lockstep/optim/state_memory.h>
#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lockstep::optim {

[[nodiscard]] StateFormat format_of(const at::Tensor& values);

// float32 in the layout of `values`; the tensor itself where it is wider than 16 bits. `scales` is
// undefined but for blocks.
[[nodiscard]] at::Tensor expanded(const at::Tensor& values, const at::Tensor& scales, Codes codes);

// The dtype in which a format keeps its values, and how many scales go with `count` of them.
[[nodiscard]] at::ScalarType dtype_of(StateFormat format);
[[nodiscard]] std::int64_t scales_of(StateFormat format, std::int64_t count);

// Rounds plain values to nearest into tensors of the format; what expanded() gave comes back.
struct Compressed {
  at::Tensor values, scales;
};
[[nodiscard]] Compressed compressed(const at::Tensor& plain, StateFormat format, Codes codes);

// Large states are walked through from end to end: of huge pages there are fewer faults when they
// are new, and fewer misses of the page table's cache. Only advice, for a tensor in host memory
// that has not been touched.
void advise_huge_pages(const at::Tensor& tensor);

// A tensor of state that is to be made.
struct WantedTensor {
  at::Tensor dense;   // what it is kept of: it gets these sizes and strides, which leave no holes
  StateTensor state;  // the places that are set
  at::ScalarType dtype = at::ScalarType::Float;
  // What is kept elsewhere until now, or what it begins with; undefined: zeros.
  at::Tensor values;
  at::Tensor scales;
};

// Gives all that are of one dtype and device places in one storage: side by side where what they
// are kept of is, so that spans can merge. `memory` null, or another device than the CPU: ordinary
// memory.
void make_together(const std::vector<WantedTensor>& wanted, StateMemory* memory);

// Whether `values` are to be moved to `memory`.
[[nodiscard]] bool lies_elsewhere(const at::Tensor& values, const StateMemory* memory);

// InvalidArgument where what is kept, perhaps loaded, has not the sizes of its parameter: it is of
// another part of it, or of the whole.
void check_state(const std::vector<UpdateEntry>& entries, const GroupStep& step);

// Brings what is kept to the format, layout and device of each parameter; what is undefined becomes
// zeros, in one storage for many parameters, in their order. With `memory` the storage is there,
// and so is then what was kept elsewhere.
void prepare_state(std::vector<UpdateEntry>& entries, StateFormat format,
                   StateMemory* memory = nullptr);

// Calls update(some of the entries) until all have had their turn, in order. With `memory` these
// are batches, so that only one of them, and the next one on its way, need be in memory. Slots are
// prepared.
void in_batches(std::vector<UpdateEntry>& entries, StateMemory* memory,
                const std::function<void(std::vector<UpdateEntry>&)>& update);

}  // namespace lockstep::optim
