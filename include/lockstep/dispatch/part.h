// Part: the part of one whole tensor that a rank has. Handles list their parameters and buffers as
// parts; checkpoints are written and read by parts.
//
// Slices of parameters that fully_shard() gives to an optimizer, and parameters of a pipeline,
// carry a record in their storage that says which parts they are. So do their gradients, and
// results that are computed from them element by element. Element-wise operations work on such
// tensors as on others. An operation that mixes elements (a norm, a sum, a matrix product) would
// silently give every rank another result; so if the whole is divided over several ranks, the
// operation throws InvalidArgument, which names the parameter. Code that combines the results of
// the ranks itself gets the ranks with the other elements from shard_group_of(), and reads values
// through values_of().
//
// The record belongs to the storage: views, detach() and data() keep it, and so do copies of the
// tensor in an optimizer's groups. Tensors into which values are copied or added (copy_(), add_()
// to an optimizer's state) do not get the record, nor do results of clone(): use clone() to compute
// with one rank's elements alone. Uses of a part's sizes or data_ptr() are not checked.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// The ranks that have the parts of one whole tensor; combines numbers over these ranks. The group
// belongs to the handle that made the ShardGroup: if the handle changes to another group, all its
// parts follow.
class ShardGroup : public std::enable_shared_from_this<ShardGroup> {
 public:
  // `ranks` is not null.
  explicit ShardGroup(std::shared_ptr<Group> ranks, std::optional<Duration> timeout = {});
  // For a tensor that is divided over `ranks`, and each part again over `inner`: a number is first
  // combined over the ranks of `inner`, then over `ranks`.
  ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<Group> ranks,
             std::optional<Duration> timeout = {});
  // For a tensor that is divided over `outer`, and each part again over `inner`. Neither may be
  // null.
  ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<ShardGroup> outer);
  // Returns the group for parts of parts: `outer` divided the tensor first, then these ranks
  // divided each part. There is one object per `outer` while a part uses it, so a norm is combined
  // over these ranks once. Returns null if `outer` is null. Not thread-safe.
  [[nodiscard]] std::shared_ptr<ShardGroup> inside(const std::shared_ptr<ShardGroup>& outer);

  [[nodiscard]] int size() const;
  // Collective over the ranks; blocks. Returns the sum of all ranks' numbers.
  [[nodiscard]] double sum(double number);
  // Collective; blocks. Returns the largest number, or NaN if any rank passes NaN.
  [[nodiscard]] double largest(double number);

  // The two halves of sum() and largest(), for several shard groups with the same last_ranks(). The
  // caller combines a number inside each group, combines these results locally, and combines the
  // total once over the last ranks. So the last ranks need not have equal numbers of groups.
  [[nodiscard]] double sum_inside(double number);
  [[nodiscard]] double largest_inside(double number);
  [[nodiscard]] const Group* last_ranks() const;
  [[nodiscard]] double sum_over_last(double number);
  [[nodiscard]] double largest_over_last(double number);

 private:
  std::shared_ptr<Group> ranks_;  // null if there is an outer group
  std::shared_ptr<ShardGroup> inner_, outer_;
  std::optional<Duration> timeout_;
  std::map<const ShardGroup*, std::weak_ptr<ShardGroup>> inside_;  // by outer
};

// How the values of a part relate to those of other ranks with the same elements.
enum class PartKind {
  parameter,  // equal values
  buffer,     // rank 0's values are used: forward() may change them per rank
  ignored     // independent values on each rank (the option `ignored`)
};

struct Part {
  std::string name;                       // the first name of the whole: "blocks.0.fc.weight"
  at::Tensor tensor = {};                 // the elements; see the function that returns the part
  std::vector<std::string> aliases = {};  // the other names of the whole, if a weight is tied
  layout::TensorSlice slice = {};         // which elements of the whole they are
  PartKind kind = PartKind::parameter;
  // The ranks over which norms are combined; null: this rank has all elements.
  std::shared_ptr<ShardGroup> shard_group = nullptr;
  // The place of the first element, in elements, where several parts lie in one storage.
  std::int64_t offset = 0;
};

namespace dispatch {

// Not collective; thread-safe. Returns the part in the tensor's record, with an undefined
// Part::tensor; null if the tensor is not a part. Valid as long as the tensor's storage.
[[nodiscard]] const Part* part_of(const at::Tensor& tensor);
// Not collective; thread-safe. Returns the ranks that have the parts of the whole; null if the
// tensor is not a part.
[[nodiscard]] std::shared_ptr<ShardGroup> shard_group_of(const at::Tensor& tensor);

// Returns an ordinary tensor that shares the memory of a part. The part's memory must be present.
// Operations treat the result as any tensor. Returns other tensors as they are.
[[nodiscard]] at::Tensor values_of(const at::Tensor& tensor);

}  // namespace dispatch

}  // namespace lockstep

#pragma GCC visibility pop
