#include "parallel/tensor/parts_node.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "global/global_tensor.h"
#include "parallel/tensor/parted_tensor.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <utility>

namespace lockstep::tensor_parallel {
namespace {

using torch::autograd::variable_list;

torch::autograd::edge_list edges_to(const std::vector<Part>& parts) {
  torch::autograd::edge_list edges;
  for (const Part& part : parts) edges.push_back(torch::autograd::impl::gradient_edge(part.tensor));
  return edges;
}

std::size_t holders(const global::GlobalTensor& global) {
  return c10::raw::intrusive_ptr::use_count(const_cast<global::GlobalTensor*>(&global));
}

// Nobody else holds the memory of a gradient, so that a leaf may keep it. A view may keep all of
// its base: the gradient of a Linear's weight is the transposed result of a product, which only the
// view and what LibTorch knows of it still hold.
bool is_alone(const at::Tensor& gradient) {
  global::GlobalTensor& global = *global::global_of(gradient);
  if (gradient.use_count() != 1 || holders(global) != 1 || global.local.use_count() != 1)
    return false;
  const c10::Storage& storage = global.local.storage();
  const global::GlobalTensor& owner = global.owner();
  if (&owner == &global) return storage.use_count() == 1;
  std::size_t kept_by_view = 1;
  auto* view = torch::autograd::impl::get_view_autograd_meta(gradient);
  if (view != nullptr && view->has_bw_view()) {
    if (view->get_backward_view().base_.use_count() != 1) return false;
    ++kept_by_view;
  }
  return holders(owner) == kept_by_view && owner.local.use_count() == 1 &&
         storage.use_count() == 2 && storage.nbytes() == global.local.nbytes();
}

// This rank's part of a gradient, in memory of its own, row-major.
at::Tensor own_part(at::Tensor gradient, const Placements& placements) {
  if (at::GradMode::is_enabled())
    return local_tensor(redistribute(gradient, placements)).contiguous();
  if (lockstep::placements(gradient) != placements) gradient = redistribute(gradient, placements);
  const bool alone = is_alone(gradient);
  const at::Tensor& local = global::global_of(gradient)->local;
  return alone ? local.contiguous() : local.clone(at::MemoryFormat::Contiguous);
}

// Where a strategy adds up over the ranks of an axis later, each of them keeps its addend.
Placements placements_of_gradient(const PartedTensor& parted) {
  const Mesh mesh = mesh_of(parted.tensor);
  Placements all = placements_on(mesh, parted.placement);
  for (std::size_t axis = 0; axis < all.size(); ++axis)
    if (parted.context_ranks > 0 && mesh.axes()[axis].name == "cp") all[axis] = Partial();
  return all;
}

}  // namespace

PartsNode::PartsNode(const PartedTensor& parted, std::shared_ptr<GradientMarks> marks,
                     std::size_t number)
    : Node(std::numeric_limits<std::uint64_t>::max(), edges_to(parted.parts)),
      parameter_(parted.name()),
      placements_(placements_of_gradient(parted)),
      context_ranks_(parted.context_ranks),
      marks_(std::move(marks)),
      number_(number) {
  if (!parted.is_cut()) return;
  for (const Part& part : parted.parts) counts_.push_back(part.slice.numel());
  // Leaves that a strategy has divided have no record any more.
  const auto* record = dispatch::part_record_of(*parted.parts.front().tensor.unsafeGetTensorImpl());
  if (record != nullptr) parts_ = record->parts;
}

variable_list PartsNode::apply(variable_list&& gradients) {
  variable_list given(num_outputs());
  at::Tensor gradient = std::move(gradients[0]);
  if (!gradient.defined()) return given;
  check(is_global(gradient),
        "gradient of {}: expected a global tensor, as the parameter is, found a plain one",
        parameter_);
  marks_->before_gradient(number_);
  at::Tensor part = own_part(std::move(gradient), placements_);
  if (context_ranks_ > 1)
    part = at::GradMode::is_enabled() ? part * context_ranks_ : part.mul_(context_ranks_);
  if (counts_.empty()) return {std::move(part)};
  part = part.view({-1});
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    given[i] = part.narrow(0, offset, counts_[i]);
    if (parts_ != nullptr && !at::GradMode::is_enabled())
      given[i] = dispatch::as_part(given[i], parts_, offset, dispatch::key());
    offset += counts_[i];
  }
  return given;
}

}  // namespace lockstep::tensor_parallel
