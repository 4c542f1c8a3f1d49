#include "parallel/sharded/unit.h"

#include "base/format.h"
#include "layout/flat_layout.h"
#include "module/tensors.h"
#include "parallel/write_watch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::sharded {
namespace {

constexpr std::int64_t alignment = 64;  // bytes, of tensors in the dtype of the computation

c10::ScalarType dtype_of(const std::vector<NamedParameter>& parameters) {
  return parameters.front().tensor.scalar_type();
}

c10::ScalarType compute_dtype_of(const std::vector<NamedParameter>& parameters,
                                 const UnitSettings& settings) {
  c10::ScalarType own = dtype_of(parameters);
  return c10::isFloatingType(own) ? settings.options.compute_dtype.value_or(own) : own;
}

bool keeps_strides(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

std::vector<std::int64_t> strides_of(const at::Tensor& tensor) {
  if (keeps_strides(tensor)) return tensor.strides().vec();
  c10::DimVector strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

// Returns the elements in the memory order given by strides_of().
at::Tensor flattened(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (!keeps_strides(values)) return values.contiguous().view({-1});
  return values.as_strided({values.numel()}, {1});
}

std::string released_text(const std::string& unit) {
  return formatted(
      "this parameter belongs to unit {}, whose values are divided over the ranks now; use it in "
      "an "
      "operation, or inside unsharded()",
      unit);
}

}  // namespace

layout::FlatLayout Unit::make_layout() const {
  std::vector<layout::TensorSpec> specs;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    specs.push_back(modules::spec_of(parameters_[i]));
    specs.back().follows =
        i > 0 && dispatch::follows(parameters_[i].tensor, parameters_[i - 1].tensor);
  }
  auto own = static_cast<std::int64_t>(c10::elementSize(dtype_));
  auto computed = static_cast<std::int64_t>(c10::elementSize(compute_dtype_));
  return layout::unit_layout(specs, group_.size(), std::max(alignment, alignment * own / computed));
}

Unit::Unit(std::string name, std::vector<NamedParameter> parameters, Group& group,
           std::shared_ptr<BufferPool> pool, std::weak_ptr<dispatch::StorageOwner> whole,
           std::weak_ptr<dispatch::StorageOwner> slices, const UnitSettings& settings)
    : name_(std::move(name)),
      tag_(formatted("unit {}", name_)),
      parameters_(std::move(parameters)),
      settings_(settings),
      group_(group),
      trains_(parameters_.front().tensor.requires_grad()),
      dtype_(dtype_of(parameters_)),
      compute_dtype_(compute_dtype_of(parameters_, settings)),
      device_(parameters_.front().tensor.device()),
      layout_(make_layout()),
      range_(layout::shard_range(layout_.numel(), group_.size(), group_.rank())),
      owned_(layout::owned_slices(layout_, group_.size(), group_.rank())),
      storage_(layout_.numel() * static_cast<std::int64_t>(c10::elementSize(compute_dtype_)),
               device_, std::move(whole), settings.key, released_text(name_)) {
  at::NoGradGuard no_grad;
  memory_ = UnitStorage::make(*this, group_, std::move(pool));
  parts_ = list_parts();
  take_parameters();
  make_slices(std::move(slices));
}

// Do this before take_parameters(): the parameters may be parts themselves.
dispatch::PartList Unit::list_parts() const {
  std::vector<Part> parts;
  for (const layout::FlatSlice& slice : owned_) {
    const auto i = static_cast<std::size_t>(slice.entry);
    parts.push_back(part_of(slice, dispatch::part_of(parameters_[i].tensor)));
  }
  return std::make_shared<const std::vector<Part>>(std::move(parts));
}

void Unit::take_parameters() {
  shard().zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    strides_.push_back(strides_of(parameter));
    const auto& [entry, elements, offset] = owned_[i];
    shard()
        .narrow(0, offset, elements.length())
        .copy_(flattened(parameter).narrow(0, elements.begin, elements.length()));
    parameter.mutable_grad().reset();
    parameter.set_data(storage_.place(compute_dtype_, layout_.entry(static_cast<int>(i)).offset,
                                      parameter.sizes(), strides_.back()));
  }
  memory_->leave();
}

// A part of a part is a part of the same whole.
Part Unit::part_of(const layout::FlatSlice& slice, const Part* before) const {
  if (before == nullptr) {
    const layout::FlatEntry& entry = layout_.entry(slice.entry);
    const auto own_strides = strides_of(parameters_[static_cast<std::size_t>(slice.entry)].tensor);
    return {.name = entry.name,
            .slice = layout::range_slice(entry.sizes, slice.of_tensor,
                                         modules::dim_order_of(entry.sizes, own_strides)),
            .shard_group = settings_.shard_group,
            .offset = slice.offset};
  }
  Part part = *before;
  const std::int64_t begin = part.slice.range.begin;
  part.slice.range = {begin + slice.of_tensor.begin, begin + slice.of_tensor.end};
  part.shard_group = settings_.shard_group->inside(before->shard_group);
  part.offset = slice.offset;
  return part;
}

void Unit::make_slices(std::weak_ptr<dispatch::StorageOwner> owner) {
  dispatch::LazyStorage storage(static_cast<std::int64_t>(shard().nbytes()), shard_device(),
                                std::move(owner), settings_.key, "", dispatch::record_of(parts_));
  storage.attach(shard());
  for (const layout::FlatSlice& slice : owned_)
    slices_.push_back(storage.place(dtype_, slice.offset, {slice.of_tensor.length()}, {1})
                          .requires_grad_(trains_));
  share_versions();
}

// A write to a slice or to the whole parameter is detected by graphs that have saved the parameter.
void Unit::share_versions() const {
  for (const layout::FlatSlice& slice : owned_) {
    const auto i = static_cast<std::size_t>(slice.entry);
    torch::autograd::impl::set_version_counter(
        slices_[i], torch::autograd::impl::version_counter(parameters_[i].tensor));
  }
}

void Unit::unshard(std::string_view tag) {
  at::NoGradGuard no_grad;
  arriving_ = memory_->take_whole();
  unsharded_writes_ = slice_writes_;
  at::Tensor input = memory_->input(unsharded_writes_);
  CallOptions options = call();
  if (!tag.empty()) options.tag = tag;
  gather_ = group_.all_gather(arriving_, input, options);
  phase_ = Phase::arriving;
}

void Unit::wait_for_unshard() {
  {
    parallel::WaitTime::Scope waiting(*settings_.waits);
    gather_.wait();
  }
  gather_ = {};
  memory_->leave();
  storage_.attach(std::exchange(arriving_, at::Tensor()));
  uses_.begin(device_);
  phase_ = Phase::present;
}

void Unit::reshard() {
  uses_.end();
  storage_.detach();
  phase_ = Phase::absent;
  memory_->release();
}

void Unit::begin_write() {
  at::NoGradGuard no_grad;
  at::Tensor copy = memory_->take_copy();
  if (!copy.defined()) return;
  group_.all_gather(copy, memory_->own_part(), call()).wait();
  storage_.attach(copy);
}

Work Unit::post_barrier(std::string_view tag) {
  return group_.barrier({.tag = tag, .timeout = settings_.options.timeout});
}

void Unit::write_back() {
  at::NoGradGuard no_grad;
  memory_->write_back();
}

std::int64_t Unit::fingerprint() const {
  at::NoGradGuard no_grad;
  return parallel::fingerprint_of_bits(memory_->used_whole());
}

const std::string& Unit::parameter_at(std::int64_t offset) const {
  std::size_t found = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (layout_.entry(static_cast<int>(i)).offset <= offset) found = i;
  return parameters_[found].name;
}

const std::string* Unit::first_stranger() const {
  for (const NamedParameter& parameter : parameters_)
    if (!storage_.holds(parameter.tensor)) return &parameter.name;
  return nullptr;
}

std::vector<at::Tensor> Unit::whole_values() {
  at::NoGradGuard no_grad;
  at::Tensor whole = at::empty({layout_.numel()}, shard().options());
  group_.all_gather(whole, shard(), call()).wait();
  memory_->leave();
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const layout::FlatEntry& entry = layout_.entry(static_cast<int>(i));
    values.push_back(at::empty_strided(entry.sizes, strides_[i], shard().options()));
    flattened(values.back()).copy_(whole.narrow(0, entry.offset, entry.numel));
  }
  return values;
}

at::Tensor Unit::part(int i) const {
  const auto& [entry, elements, offset] = owned_[static_cast<std::size_t>(i)];
  return shard().narrow(0, offset, elements.length());
}

void Unit::parts_written() {
  memory_->shard_written();
  for (const at::Tensor& slice : slices_) slice.unsafeGetTensorImpl()->bump_version();
}

void Unit::hand_back() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> values = whole_values();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].tensor.set_data(values[i].to(device_));
}

void Unit::abandon(std::string text) {
  gather_ = {};
  arriving_.reset();
  storage_.explain(std::move(text));
  phase_ = Phase::absent;
}

// Each kind of call has its own group, so that its order is the same on all ranks, independent of
// the other kinds.
Groups groups_on(const Ranks& ranks) {
  Group shards = ranks.group(), replicas;
  if (ranks.mesh() && ranks.mesh()->axes().size() > 1) {
    const Mesh& mesh = *ranks.mesh();
    std::vector<std::string> names;
    for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
    shards = mesh[names.back()];
    names.pop_back();
    replicas = names.size() == 1 ? mesh[names.front()] : mesh.sub_mesh(names).group();
    replicas = replicas.split(0);
  }
  return {ranks.group(), shards.split(0), shards.split(0), replicas};
}

}  // namespace lockstep::sharded
