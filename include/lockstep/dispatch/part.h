// Part: the part of one whole tensor that a rank has. Handles list their parameters and buffers as
// parts; checkpoints are written and read by parts.
//
// Slices of parameters that fully_shard() gives to an optimizer, and parameters of a pipeline,
// know in their storage which parts they are. So do their gradients, and results that are computed
// from them element by element. Operations that treat elements apart work on such tensors as on
// others. An operation that mixes elements (a norm, a sum, a matrix product) would silently give
// every rank another result: on a part that has more than one rank it throws InvalidArgument with
// the name of the parameter. Code that combines the results of the ranks itself asks
// shard_group_of() for the ranks with the other elements, and reads values through values_of().
//
// The record belongs to the storage: views, detach() and data() keep it, and so do copies of the
// tensor in an optimizer's groups. It is lost if values are written into another tensor (copy_(),
// add_() to an optimizer's state), and by clone(), which is the way to look at one rank's elements
// alone. Uses of a part's sizes or data_ptr() are not checked.
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

// The ranks that hold the parts of one whole; combines their numbers. The group belongs to the
// handle that made the ShardGroup: if the handle changes to another group, all its parts follow.
class ShardGroup : public std::enable_shared_from_this<ShardGroup> {
 public:
  // `ranks` is not null.
  explicit ShardGroup(std::shared_ptr<Group> ranks, std::optional<Duration> timeout = {});
  // For parts of which each rank's share is divided again: a number is first combined over the
  // ranks of `inner`, then over `ranks`.
  ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<Group> ranks,
             std::optional<Duration> timeout = {});
  // For parts that were divided over `outer` before. Neither is null.
  ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<ShardGroup> outer);
  // Returns the group for parts that were divided over `outer` before these ranks divided them
  // again: one object for each `outer` while a part uses it, so that norms go over these ranks
  // once. Returns null if `outer` is null. Not thread-safe.
  [[nodiscard]] std::shared_ptr<ShardGroup> inside(const std::shared_ptr<ShardGroup>& outer);

  [[nodiscard]] int size() const;
  // Collective over the ranks, and blocking: returns the sum of all ranks' numbers.
  [[nodiscard]] double sum(double number);
  // Collective, and blocking: returns the largest number; NaN if any rank passes NaN.
  [[nodiscard]] double largest(double number);

  // The two halves of sum() and largest(), for several shard groups that end with the same ranks:
  // numbers are combined inside each group, then with each other, and once over the last ranks,
  // which may have other numbers of groups.
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
  buffer,     // rank 0's values count: forward() may have changed each rank's own
  ignored     // each rank has values of its own, which belong to no whole (the option `ignored`)
};

struct Part {
  std::string name;                       // the first name of the whole: "blocks.0.fc.weight"
  at::Tensor tensor = {};                 // the elements, as the function that gives the part says
  std::vector<std::string> aliases = {};  // the other names of the whole, if a weight is tied
  layout::TensorSlice slice = {};         // which elements of the whole they are
  PartKind kind = PartKind::parameter;
  // The ranks over which norms of the elements are added up; null: this rank has all elements.
  std::shared_ptr<ShardGroup> shard_group = nullptr;
  // The place of the first element, in elements, where several parts lie in one storage.
  std::int64_t offset = 0;
};

namespace dispatch {

// Local, any thread. Returns the part that a tensor knows to be, without `tensor`; null if it is
// none. Valid as long as the tensor's storage.
[[nodiscard]] const Part* part_of(const at::Tensor& tensor);
// Local, any thread. Returns the ranks with the other elements; null if the tensor is no part.
[[nodiscard]] std::shared_ptr<ShardGroup> shard_group_of(const at::Tensor& tensor);

// Returns an ordinary tensor on the memory of a part, which must be there: operations do not know
// that it is one. Returns other tensors as they are.
[[nodiscard]] at::Tensor values_of(const at::Tensor& tensor);

}  // namespace dispatch

}  // namespace lockstep

#pragma GCC visibility pop
