#include "parallel/pipeline/own_parameters.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "dispatch/part.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <array>
#include <map>
#include <utility>

namespace lockstep::pipeline {

OwnParameters::OwnParameters(std::vector<Part> parameters, const std::shared_ptr<Group>& group)
    : parameters_(std::move(parameters)) {
  at::NoGradGuard no_grad;
  if (parameters_.empty())
    parameters_.push_back(
        {.name = "(none)", .tensor = at::empty({0}), .slice = layout::whole_slice(std::array{0L})});
  // One for each shard group of the stages: norms combine them once.
  std::map<const ShardGroup*, std::shared_ptr<ShardGroup>> groups;
  for (const Part& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    check(tensor.is_non_overlapping_and_dense(),
          "pipeline: parameter {}: expected a dense tensor without gaps, found strides [{}]",
          parameter.name, listed(tensor.strides(), ", "));
    auto& over_stages = groups[parameter.shard_group.get()];
    if (!over_stages) over_stages = std::make_shared<ShardGroup>(parameter.shard_group, group);
    Part part = parameter;
    part.tensor = at::Tensor();
    part.shard_group = over_stages;
    part.offset = 0;
    auto alone = std::make_shared<const std::vector<Part>>(1, part);
    part.tensor = dispatch::as_part(dispatch::values_of(tensor.detach()), std::move(alone), 0,
                                    dispatch::key());
    part.tensor.set_requires_grad(tensor.requires_grad());
    parts_.push_back(std::move(part));
  }
  given_.resize(parts_.size(), WeakStorage(c10::intrusive_ptr<c10::StorageImpl>()));
  give_gradients();
}

at::Tensor OwnParameters::as_part(const at::Tensor& values, std::size_t i) const {
  return dispatch::as_part_like(dispatch::values_of(values.detach()), parts_[i].tensor);
}

bool OwnParameters::is_as_given(const at::Tensor& gradient, std::size_t i) const {
  const auto storage = given_[i].lock();
  if (!gradient.defined()) return storage == nullptr;
  return storage != nullptr && gradient.storage().unsafeGetStorageImpl() == storage.get();
}

void OwnParameters::remember(const at::Tensor& gradient, std::size_t i) {
  given_[i] = gradient.defined() ? WeakStorage(gradient.storage().getWeakStorageImpl())
                                 : WeakStorage(c10::intrusive_ptr<c10::StorageImpl>());
}

void OwnParameters::take_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    check(tensor.numel() == 0 || tensor.const_data_ptr() == parts_[i].tensor.const_data_ptr(),
          "pipeline: parameter {}: expected the memory that it had when the pipeline was made, "
          "found other memory; make the pipeline after to() and set_data()",
          parameters_[i].name);
    const at::Tensor& given = parts_[i].tensor.grad();
    at::Tensor& own = tensor.mutable_grad();
    const bool module_counts = is_as_given(given, i) && !is_as_given(own, i);
    const at::Tensor gradient = module_counts ? own : given;
    own = gradient.defined() ? dispatch::values_of(gradient.detach()) : at::Tensor();
  }
}

void OwnParameters::give_gradients() {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& own = parameters_[i].tensor.mutable_grad();
    at::Tensor& given = parts_[i].tensor.mutable_grad();
    given = own.defined() ? as_part(own, i) : at::Tensor();
    if (own.defined() && parameters_[i].shard_group == nullptr) own = given;
    remember(own, i);
  }
}

void OwnParameters::zero_grad(bool set_to_none) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& given = parts_[i].tensor.mutable_grad();
    at::Tensor& own = parameters_[i].tensor.mutable_grad();
    if (set_to_none) {
      given.reset();
      own.reset();
      remember(given, i);
    } else {
      if (given.defined()) given.zero_();
      if (own.defined() && !own.is_same(given)) own.zero_();
    }
  }
}

}  // namespace lockstep::pipeline
