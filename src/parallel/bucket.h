// Bucket: some tensors' places in one flat tensor that peers of the host can read where it lies.
//
// Not thread-safe: its owner orders use and collectives.
#pragma once

#include "layout/flat_layout.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace lockstep::parallel {

class Bucket {
 public:
  // Takes memory of that dtype, the layout's, from group.empty_shared() and fills it with zeros.
  // Local: no peer takes part. `name` is for messages.
  Bucket(const Group& group, layout::FlatLayout layout, c10::ScalarType dtype, c10::Device device,
         std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const layout::FlatLayout& layout() const { return layout_; }

  // All of it, padding included: one dimension. Lives as long as any tensor that shares its memory.
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  // What a floating-point reduction takes: flat(), or for complex numbers the same memory as pairs
  // of reals.
  [[nodiscard]] at::Tensor reducible() const;

  // A tensor of the sizes of entry `i` in its place, with the strides of `like` where those leave
  // no holes, else row-major. It is no view in autograd's sense, so it can be a .grad that
  // zero_grad() detaches in place.
  [[nodiscard]] at::Tensor view(int i, const at::Tensor& like) const;
  [[nodiscard]] at::Tensor view(int i) const;

  // Whether `tensor` is what view(i, like) returns: same memory, dtype, sizes and strides.
  [[nodiscard]] bool holds(int i, const at::Tensor& tensor, const at::Tensor& like) const;

 private:
  [[nodiscard]] bool is_at(const at::Tensor& tensor, std::int64_t offset) const;

  layout::FlatLayout layout_;
  at::Tensor flat_;
  std::string name_;
};

}  // namespace lockstep::parallel
