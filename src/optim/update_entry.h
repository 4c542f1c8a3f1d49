// A parameter in one step(), the same for all optimizers: what is updated, by what gradient, and
// what is remembered of it.
#pragma once

#include "dispatch/lazy_storage.h"
#include "optim/element_transform.h"
#include "optim/formats_kernel.h"

#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::optim {

// One tensor of a parameter's state, in place. `values` null: the entry is not in use.
struct StateTensor {
  at::Tensor* values = nullptr;
  at::Tensor* scales =
      nullptr;  // null: always float32 (or the parameter's dtype outside the kernel)
  Codes codes = Codes::with_sign;
};

struct UpdateEntry {
  at::Tensor parameter;  // the user's
  at::Tensor local;      // what this rank has of a global parameter; any other itself
  at::Tensor dense;      // the same without holes in its memory; else a copy to be copied back
  at::Tensor gradient;   // laid out as `dense`
  // Of the gradient's values; null: its memory.
  std::shared_ptr<const dispatch::ValueSource> source;
  at::Tensor* master = nullptr;
  std::array<StateTensor, 3> state;
  std::int64_t age = 0;    // the number of this update of it, from 1
  bool first = false;      // nothing was kept of it before
  std::int64_t place = 0;  // elements of the group before it
  std::size_t number = 0;  // in the group

  [[nodiscard]] bool has_16_bits() const;
  // Whether our kernels update it; LibTorch's do otherwise.
  [[nodiscard]] bool is_for_kernel() const;
};

// What all entries of a group share.
struct GroupStep {
  UpdateOptions update;
  ElementTransform transform;
  std::int64_t group = 0;
  const char* optimizer = "";           // for messages
  std::int64_t* bytes_moved = nullptr;  // counts up; null: nobody asks
};

// The parameters of a group that have a gradient, with dense memory. InvalidArgument, before
// anything is changed, for a gradient or dtype or state format that cannot be.
[[nodiscard]] std::vector<UpdateEntry> make_entries(const std::vector<at::Tensor>& parameters,
                                                    const GroupStep& step);

// After the update: stand-ins go back into parameters with holes in their memory, and every
// parameter's version counts up.
void copy_back(std::vector<UpdateEntry>& entries);

// The tensor itself where it already has the strides, dtype and device of `like`.
[[nodiscard]] at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like,
                                     at::ScalarType dtype);

// As LibTorch's fused kernels want a entry.

// What is updated: the parameter itself, or its master.
[[nodiscard]] at::Tensor updated_tensor(const UpdateEntry& entry);
// The transformed gradient in its dtype. Maximizing is left to the kernel.
[[nodiscard]] at::Tensor transformed_gradient(const UpdateEntry& entry,
                                              const ElementTransform& transform);
// Rounds a master into its parameter.
void publish_master(const UpdateEntry& entry);

}  // namespace lockstep::optim
