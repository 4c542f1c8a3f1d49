// Bucket: places for several tensors in one flat tensor, in memory that peers on the same host can
// read.
//
// Not thread-safe: its owner orders use and collectives.
#pragma once

#include "layout/flat_layout.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

// Returns elements of a flat tensor as a tensor that is not a view in autograd's sense, so
// zero_grad() can detach it in place when it is a .grad.
[[nodiscard]] at::Tensor place(const at::Tensor& flat, std::int64_t offset, at::IntArrayRef sizes,
                               at::IntArrayRef strides);

// Groups tensors of the same dtype and device, in their order.
[[nodiscard]] layout::BucketPlan plan_for(const std::vector<at::Tensor>& tensors,
                                          const layout::PlanOptions& limits = {});

class Bucket {
 public:
  // Allocates memory of the layout's dtype with group.empty_shared() and fills it with zeros.
  // Local: involves no peer. `name` is for messages.
  Bucket(const Group& group, layout::FlatLayout layout, c10::ScalarType dtype, c10::Device device,
         std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const layout::FlatLayout& layout() const { return layout_; }

  // Returns the whole bucket with padding, in one dimension. Its memory lives as long as any tensor
  // that shares it.
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  // The tensor for a floating-point reduction: flat(), or for complex numbers the same memory as
  // pairs of reals.
  [[nodiscard]] at::Tensor reducible() const;

  // Returns the place() of entry `i`, with the strides of `like` if these leave no gaps, otherwise
  // row-major.
  [[nodiscard]] at::Tensor view(int i, const at::Tensor& like) const;
  [[nodiscard]] at::Tensor view(int i) const;

  // Returns true if `tensor` equals view(i, like) in memory, dtype, sizes and strides.
  [[nodiscard]] bool holds(int i, const at::Tensor& tensor, const at::Tensor& like) const;

 private:
  [[nodiscard]] bool is_at(const at::Tensor& tensor, std::int64_t offset) const;

  layout::FlatLayout layout_;
  at::Tensor flat_;
  std::string name_;
};

// Returns the pages of a buffer to the system. Neither this rank nor a peer may still need the
// values. Without this call, a buffer of Group::empty_shared() keeps its pages for the next buffer.
// Has no effect on other memory, whose pages are freed with its tensor.
void give_pages_back(const at::Tensor& buffer);

// Collective and blocking: broadcasts rank 0's values. Tensors of one dtype and device are sent
// together, in buckets of about `bucket_bytes`. They may have gaps, and elements that share memory
// (expand()): each element of memory is sent once.
void broadcast_now(const Group& group, const std::vector<at::Tensor>& tensors,
                   std::int64_t bucket_bytes, const CallOptions& call = {});

// Repeated broadcasts of the same tensors, from any root: keeps the buffers. Not thread-safe.
class StateBroadcast {
 public:
  // The group outlives this object.
  StateBroadcast(Group& group, std::vector<at::Tensor> tensors);

  // Posts the current values of the root. If the previous post was not finished, blocks until it
  // has completed.
  void post(std::optional<Duration> timeout, int root = 0);
  // Blocks until the values have arrived and writes them into the tensors. The writes do not change
  // version counters: a graph that saved a buffer can still run backward.
  void finish();

 private:
  struct Item {
    Bucket bucket;
    std::vector<at::Tensor> tensors;
    Work work = {};
  };
  void build();
  [[nodiscard]] bool fits() const;

  Group& group_;
  int root_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<Item> items_;
};

// Returns one line for each deferred parameter and buffer. The lines must be equal on all ranks,
// because the values are broadcast collectively.
[[nodiscard]] std::vector<std::string> deferred_lines(const torch::nn::Module& module);

// Collective and blocking. Rank 0 computes the values of the deferred tensors among `tensors`, with
// or without memory, and broadcasts them.
void give_values(const Group& group, const std::vector<at::Tensor>& tensors,
                 std::int64_t bucket_bytes, const CallOptions& call);

// Local. Turns a deferred tensor into an ordinary one with its values; does not change other
// tensors.
void make_ordinary(const at::Tensor& tensor);

}  // namespace lockstep::parallel
