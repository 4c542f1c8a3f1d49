#include "parallel/tensor/tensor_parallel_parameter.h"

#include "base/check.h"
#include "base/format.h"
#include "dispatch/autograd_node.h"
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/part.h"
#include "global/global_tensor.h"
#include "global/mesh_context.h"
#include "global/spec.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/state_dict.h"

#include <lockstep/dispatch/deferred_init.h>
#include <lockstep/global/placement.h>
#include <lockstep/global/tensor.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// Returns true if no other tensor holds the memory of a gradient, so that a leaf may keep it. A
// view may keep its whole base: the gradient of a Linear's weight is the transposed result of a
// product, which is held only by the view and by LibTorch's record of it.
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

// Returns this rank's part of a gradient in separate memory, row-major.
at::Tensor own_part(at::Tensor gradient, const Placements& placements) {
  if (at::GradMode::is_enabled())
    return local_tensor(redistribute(gradient, placements)).contiguous();
  if (lockstep::placements(gradient) != placements) gradient = redistribute(gradient, placements);
  const bool alone = is_alone(gradient);
  const at::Tensor& local = global::global_of(gradient)->local;
  return alone ? local.contiguous() : local.clone(at::MemoryFormat::Contiguous);
}

// If a strategy later sums over the ranks of an axis, each rank keeps its term.
Placements placements_of_gradient(const TensorParallelParameter& sharded) {
  const Mesh mesh = mesh_of(sharded.tensor);
  Placements all = placements_on(mesh, sharded.placement);
  for (std::size_t axis = 0; axis < all.size(); ++axis)
    if (sharded.context_ranks > 0 && mesh.axes()[axis].name == "cp") all[axis] = Partial();
  return all;
}

// PartsNode: the autograd node between a module's parameter, which is a global tensor, and the
// leaves that hold this rank's part of the parameter.
//
// The node exists as long as the parameter and saves nothing, so all graphs share it. Like
// LibTorch's AccumulateGrad, it has the highest sequence number, so it runs as soon as its gradient
// is complete.
class PartsNode final : public torch::autograd::Node {
 public:
  PartsNode(const TensorParallelParameter& sharded, std::shared_ptr<GradientMarks> marks,
            std::size_t number)
      : Node(std::numeric_limits<std::uint64_t>::max(), edges_to(sharded.parts)),
        parameter_(sharded.name()),
        placements_(placements_of_gradient(sharded)),
        context_ranks_(sharded.context_ranks),
        marks_(std::move(marks)),
        number_(number) {
    if (!sharded.is_cut()) return;
    for (const Part& part : sharded.parts) counts_.push_back(part.slice.numel());
    // After a strategy has sharded the leaves, they have no record.
    parts_ = dispatch::parts_beside(sharded.parts.front().tensor);
  }

  // Collective if the placements of the gradient differ from the parameter's.
  torch::autograd::variable_list apply(variable_list&& gradients) override {
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

  std::string name() const override { return "lockstep::PartsNode"; }

 private:
  const std::string parameter_;
  const Placements placements_;
  const int context_ranks_;
  std::vector<std::int64_t> counts_;  // elements of each leaf; empty: there is one with all of them
  dispatch::PartList parts_;          // null: the gradients of leaves are no parts
  std::shared_ptr<GradientMarks> marks_;
  const std::size_t number_;
};

// Returns the tensor's values in a storage of their own; a deferred tensor gets its memory.
at::Tensor whole_values(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (dispatch::is_deferred(tensor)) {
    dispatch::give_values(tensor);
    values = dispatch::as_ordinary(tensor).detach();
  }
  values = values.contiguous();
  return values.nbytes() == values.storage().nbytes() ? values : values.clone();
}

global::PlacementList list_of(const Placements& all) { return {all.begin(), all.end()}; }

at::Tensor part_from_root(Group group, const at::Tensor& tensor, Placement placement,
                          const CallOptions& call) {
  const int ranks = group.size(), rank = group.rank();
  at::Tensor whole;
  if (group.is_root()) whole = whole_values(tensor);
  if (!placement.is_shard()) {
    if (!whole.defined()) whole = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
    if (whole.numel() > 0) group.broadcast(whole, 0, call).wait();
    return whole;
  }
  const global::AxisPlace first{ranks, 0}, own{ranks, rank};
  const std::array<Placement, 1> placements = {placement};
  const global::Dims most = global::local_sizes(tensor.sizes(), placements, {&first, 1});
  const global::Dims sizes = global::local_sizes(tensor.sizes(), placements, {&own, 1});
  const std::int64_t slot = c10::multiply_integers(most);
  at::Tensor sent, received = at::empty({slot}, tensor.options().requires_grad(false));
  if (whole.defined()) {
    // Rank 0 has the longest part; shorter ones are sent in slots of its length.
    sent = at::empty({slot * ranks}, received.options());
    for (int r = 0; r < ranks; ++r) {
      const at::Tensor part = global::cut(whole, placement, ranks, r);
      sent.narrow(0, r * slot, part.numel()).view(part.sizes()).copy_(part);
    }
  }
  if (slot > 0) group.scatter(received, sent, 0, call).wait();
  const std::int64_t count = c10::multiply_integers(sizes);
  return (count == slot ? received : received.narrow(0, 0, count).clone()).view(sizes);
}

std::vector<layout::TensorSlice> slices_of(at::IntArrayRef sizes, Placement placement, int ranks,
                                           int rank) {
  if (!placement.is_shard()) return {layout::whole_slice(sizes)};
  const auto dim = static_cast<std::size_t>(placement.dim());
  const std::int64_t block = sizes[dim] / placement.parts();
  std::vector<layout::TensorSlice> slices;
  for (int part = 0; part < placement.parts(); ++part)
    for (const layout::Range& range : global::ranges_of(block, placement, ranks, rank)) {
      layout::Box box = layout::box_of(sizes);
      box.offsets[dim] = part * block + range.begin;
      box.sizes[dim] = range.length();
      slices.push_back(layout::box_slice(sizes, std::move(box)));
    }
  return slices;
}

// Gives each part its leaf in `local`.
void add_leaves(TensorParallelParameter& sharded) {
  if (!sharded.is_cut()) {
    sharded.parts.front().tensor = sharded.local.detach();
    return;
  }
  std::int64_t offset = 0;
  for (Part& part : sharded.parts) {
    part.offset = offset;
    offset += part.slice.numel();
  }
  const auto list = std::make_shared<const std::vector<Part>>(sharded.parts);
  for (std::size_t i = 0; i < sharded.parts.size(); ++i)
    sharded.parts[i].tensor =
        dispatch::as_part(sharded.values(i), list, sharded.parts[i].offset, dispatch::key());
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// After every write, autograd makes a new node for a view from the view's base, so a node that
// connect() has set would be lost.
void make_no_view(const at::Tensor& tensor) {
  if (torch::autograd::impl::get_view_autograd_meta(tensor) != nullptr)
    tensor.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
}

// Makes all these tensors share one version counter, so that a graph that has saved one of them
// detects a write to another.
void share_version(const TensorParallelParameter& sharded, const std::vector<at::Tensor>& divided) {
  const auto& version = torch::autograd::impl::version_counter(sharded.local);
  torch::autograd::impl::set_version_counter(sharded.tensor, version);
  for (const Part& part : sharded.parts)
    torch::autograd::impl::set_version_counter(part.tensor, version);
  for (const at::Tensor& part : divided) torch::autograd::impl::set_version_counter(part, version);
}

}  // namespace

Placements placements_on(const Mesh& mesh, Placement placement) {
  Placements all;
  for (const MeshAxis& axis : mesh.axes())
    all.push_back(axis.name == "tp" ? placement : Placement());
  return all;
}

at::Tensor TensorParallelParameter::values(std::size_t i) const {
  if (!is_cut()) return local;
  std::int64_t offset = 0;
  for (std::size_t before = 0; before < i; ++before) offset += parts[before].slice.numel();
  return local.view({-1}).narrow(0, offset, parts[i].slice.numel());
}

TensorParallelParameter shard_parameter(const Part& whole, Placement placement, const Mesh& mesh,
                                        const std::shared_ptr<ShardGroup>& ranks) {
  at::NoGradGuard no_grad;
  const Group group = mesh["tp"];
  const CallOptions call{.tag = whole.name};
  TensorParallelParameter sharded{.tensor = whole.tensor, .placement = placement};
  for (layout::TensorSlice& slice :
       slices_of(whole.tensor.sizes(), placement, group.size(), group.rank()))
    sharded.parts.push_back({.name = whole.name,
                             .aliases = whole.aliases,
                             .slice = std::move(slice),
                             .kind = whole.kind,
                             .shard_group = sharded.is_cut() ? ranks : nullptr});
  sharded.trains = whole.tensor.requires_grad();
  sharded.local = part_from_root(group, whole.tensor, placement, call);
  for (const MeshAxis& axis : mesh.axes())
    if (axis.name != "tp" && sharded.local.numel() > 0)
      mesh[axis.name].broadcast(sharded.local, 0, call).wait();
  make_no_view(sharded.tensor);
  sharded.tensor.set_requires_grad(false);
  sharded.tensor.mutable_grad().reset();
  sharded.tensor.set_data(at::empty({0}, sharded.local.options()));
  add_leaves(sharded);
  for (const Part& part : sharded.parts) part.tensor.set_requires_grad(sharded.trains);
  return sharded;
}

HeldByLeaves::HeldByLeaves(TensorParallelParameter& sharded)
    : memory_(sharded.local.storage().getWeakStorageImpl()), sizes_(sharded.local.sizes().vec()) {
  for (const Part& part : sharded.parts) of_leaves_.push_back(storage_of(part.tensor));
  sharded.local.reset();
}

bool HeldByLeaves::end(TensorParallelParameter& sharded) const {
  at::NoGradGuard no_grad;
  const at::Tensor& first = sharded.parts.front().tensor;
  const c10::DimVector strides = c10::contiguous_strides(sizes_);
  sharded.is_divided = storage_of(first) != of_leaves_.front();
  if (!sharded.is_divided) {
    sharded.local = at::empty({0}, first.options().requires_grad(false))
                        .set_(c10::Storage(memory_.lock()), 0, sizes_, strides);
    return true;
  }
  sharded.local = first.detach();
  if (!sharded.is_cut()) return true;
  std::int64_t next = first.storage_offset();
  for (const Part& part : sharded.parts) {
    const at::Tensor& leaf = part.tensor;
    if (storage_of(leaf) != storage_of(first) || leaf.storage_offset() != next) return false;
    next += leaf.numel();
  }
  sharded.local = sharded.local.as_strided(sizes_, strides, first.storage_offset());
  return true;
}

void attach(TensorParallelParameter& sharded, const Mesh& mesh,
            const std::vector<at::Tensor>& divided) {
  at::NoGradGuard no_grad;
  const global::SpecPtr spec =
      global::MeshContext::of(mesh).spec(list_of(placements_on(mesh, sharded.placement)),
                                         sharded.sizes(), c10::contiguous_strides(sharded.sizes()),
                                         sharded.local.scalar_type(), sharded.local.device());
  sharded.tensor.set_data(global::wrap(sharded.local, spec, mesh));
  share_version(sharded, divided);
}

void connect(TensorParallelParameter& sharded, const std::shared_ptr<GradientMarks>& marks,
             const std::vector<at::Tensor>& divided) {
  if (!sharded.trains) return;
  std::vector<at::Tensor> holders;
  for (const Part& part : sharded.parts) holders.push_back(part.tensor);
  holders.insert(holders.end(), divided.begin(), divided.end());
  const std::size_t number = marks->add(sharded.tensor, std::move(holders));
  auto node = dispatch::make_node<PartsNode>(sharded, marks, number);
  const auto input = node->add_input_metadata(sharded.tensor);
  torch::autograd::impl::set_gradient_edge(sharded.tensor, {std::move(node), input});
}

void disconnect(TensorParallelParameter& sharded) {
  if (!sharded.trains) return;
  torch::autograd::impl::set_gradient_edge(sharded.tensor, {});
  sharded.tensor.set_requires_grad(true);
}

std::vector<std::string> names_of_leaf(const Part& part, std::size_t leaf) {
  std::vector<std::string> names = parallel::names_of(part);
  if (leaf > 0)
    for (std::string& name : names) name += formatted("#{}", leaf);
  return names;
}

std::shared_ptr<torch::nn::Module> module_of_shards(const std::vector<Part>& all) {
  auto module = std::make_shared<torch::nn::Module>("parts");
  std::size_t leaf = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    leaf = i > 0 && all[i].name == all[i - 1].name ? leaf + 1 : 0;
    for (const std::string& name : names_of_leaf(all[i], leaf))
      all[i].kind == PartKind::buffer ? modules::add_buffer(*module, name, all[i].tensor)
                                      : modules::add_parameter(*module, name, all[i].tensor);
  }
  return module;
}

namespace {

constexpr const char* text =
    "the gradients of a parallelized module are in handle.parameters(): clip them by the handle's "
    "clip_grad_norm(), and build the optimizer on the handle's parameters()";

}  // namespace

GradientMarks::GradientMarks() {
  dispatch::LazyStorage storage(sizeof(float), at::kCPU, {}, dispatch::key(), text);
  mark_ = storage.place(at::kFloat, 0, {1}, {1});
}

std::size_t GradientMarks::add(const at::Tensor& parameter, std::vector<at::Tensor> leaves) {
  entries_.push_back({decltype(Entry::parameter)(parameter.getIntrusivePtr()), std::move(leaves)});
  return entries_.size() - 1;
}

void GradientMarks::before_gradient(std::size_t number) {
  if (on_gradient_) on_gradient_();
  // Detects zeroing for all parameters, also for those without a gradient in this backward().
  const int backward = parallel::current_backward();
  if (std::exchange(last_backward_, backward) != backward) {
    if (auto watch = watch_.lock()) watch->check();
    forget_zeroed();
  }
  Entry& entry = entries_[number];
  auto parameter = entry.parameter.lock();
  if (parameter == nullptr) return;
  parameter->mutable_grad() = mark_;
  entry.is_marked = true;
}

void GradientMarks::forget_zeroed() {
  for (Entry& entry : entries_) {
    auto parameter = entry.parameter.lock();
    if (!entry.is_marked || parameter == nullptr || parameter->grad().defined()) continue;
    for (const at::Tensor& leaf : entry.leaves) leaf.mutable_grad().reset();
    entry.is_marked = false;
  }
}

void GradientMarks::clear() {
  if (auto watch = watch_.lock()) watch->check();
  for (Entry& entry : entries_) {
    entry.is_marked = false;
    if (auto parameter = entry.parameter.lock(); parameter != nullptr)
      parameter->mutable_grad().reset();
  }
}

}  // namespace lockstep::tensor_parallel
