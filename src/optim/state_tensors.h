// Tensors of optimizer state: their formats, their allocation, and the order in which a step
// processes them.
#pragma once

#include "optim/formats_kernel.h"
#include "optim/update_entry.h"

#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lockstep::optim {

[[nodiscard]] StateFormat format_of(const at::Tensor& values);

// Converts `values` to float32 in the same layout; returns `values` itself if it is wider than 16
// bits. `scales` is only defined for the blockwise format.
[[nodiscard]] at::Tensor expanded(const at::Tensor& values, const at::Tensor& scales, Codes codes);

// Return the dtype in which a format stores its values, and the number of scales for `count`
// values.
[[nodiscard]] at::ScalarType dtype_of(StateFormat format);
[[nodiscard]] std::int64_t scales_of(StateFormat format, std::int64_t count);

// Rounds plain values to nearest into tensors of the format. Values that expanded() returned are
// restored exactly.
struct Compressed {
  at::Tensor values, scales;
};
[[nodiscard]] Compressed compressed(const at::Tensor& plain, StateFormat format, Codes codes);

// Large states are traversed from end to end: huge pages cause fewer page faults when the state is
// new, and fewer TLB misses later. A hint, for a tensor in host memory that has not been touched.
void advise_huge_pages(const at::Tensor& tensor);

// A tensor of state to be allocated.
struct WantedTensor {
  // The parameter's values; the state gets their sizes and strides, which leave no holes.
  at::Tensor dense;
  StateTensor state;  // where the new tensors are stored
  at::ScalarType dtype = at::ScalarType::Float;
  // Existing or initial values; undefined: zeros.
  at::Tensor values;
  at::Tensor scales;
};

// Allocates tensors of the same dtype and device in one storage. State is adjacent if the
// parameters are, so that spans can merge. If `memory` is null, or the device is not the CPU, uses
// ordinary memory.
void make_together(const std::vector<WantedTensor>& wanted, StateMemory* memory);

// Returns true if `values` must be moved to `memory`.
[[nodiscard]] bool lies_elsewhere(const at::Tensor& values, const StateMemory* memory);

// Throws InvalidArgument if existing state, which may be loaded, has other sizes than its
// parameter: it belongs to another part of the parameter, or to the whole.
void check_state(const std::vector<UpdateEntry>& entries, const GroupStep& step);

// Converts existing state to the format, layout and device of each parameter. Undefined state
// becomes zeros, in one storage for many parameters, in their order. With `memory`, the storage is
// allocated there, and existing state is moved there.
void prepare_state(std::vector<UpdateEntry>& entries, StateFormat format,
                   StateMemory* memory = nullptr);

// Calls update(some entries) until all prepared entries are updated, in order. With `memory`, it
// works in batches: only the current batch, and the next one while it is loading, need to be
// resident.
void in_batches(std::vector<UpdateEntry>& entries, StateMemory* memory,
                const std::function<void(std::vector<UpdateEntry>&)>& update);

}  // namespace lockstep::optim
