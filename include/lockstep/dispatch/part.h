// Parts: what a tensor knows of itself when it is one rank's part of a whole. fully_shard() gives
// slices of parameters to an optimizer; these, their gradients and what is computed from them
// element by element are parts.
//
// An operation that treats elements apart works on a part as on any other tensor. One that mixes
// elements (a norm, a sum, a product of matrices) would silently give every rank another result: on
// a part that has more than one rank it is InvalidArgument and names the parameter. Code that
// combines the ranks' results itself learns from parts_of() which ranks hold the others, and reads
// values through values_of().
//
// The record belongs to the storage, so views, detach() and data() keep it, and so do copies of the
// tensor in an optimizer's groups. It is lost where values are written into another tensor
// (copy_(), add_() to an optimizer's state) and by clone(), the way to look at a part on purpose.
// What depends on a part's sizes or data_ptr() is not seen either.
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

namespace lockstep::dispatch {

// The ranks that hold the parts of one whole; adds up their numbers. The group belongs to the
// handle that made the ShardGroup: a handle that goes on with another group there takes all its
// parts along.
class ShardGroup : public std::enable_shared_from_this<ShardGroup> {
 public:
  // Not null.
  explicit ShardGroup(std::shared_ptr<Group> ranks, std::optional<Duration> timeout = {});
  // The same where each of these ranks' share is divided again: a number is first combined over
  // the ranks of `inner`, then over `ranks`.
  ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<Group> ranks,
             std::optional<Duration> timeout = {});
  // The same for parts that were divided over `outer` before: neither is null.
  ShardGroup(std::shared_ptr<ShardGroup> inner, std::shared_ptr<ShardGroup> outer);
  // For parts that were divided over `outer` before these ranks divided them again: one object for
  // each `outer` while a part uses it, so that norms go over these ranks once. Null for null. Not
  // thread-safe.
  [[nodiscard]] std::shared_ptr<ShardGroup> inside(const std::shared_ptr<ShardGroup>& outer);

  [[nodiscard]] int size() const;
  // Collective over the ranks, and blocking: the sum of all ranks' numbers.
  [[nodiscard]] double sum(double number);
  // The same for the largest; NaN where a rank has NaN.
  [[nodiscard]] double largest(double number);

  // The two halves of these, for several divisions that end with the same ranks: numbers are
  // combined inside each division, then with each other, and once over the last ranks, which may
  // have other numbers of divisions.
  [[nodiscard]] double sum_inside(double number);
  [[nodiscard]] double largest_inside(double number);
  [[nodiscard]] const Group* last_ranks() const;
  [[nodiscard]] double sum_over_last(double number);
  [[nodiscard]] double largest_over_last(double number);

 private:
  std::shared_ptr<Group> ranks_;  // null where there is an outer division
  std::shared_ptr<ShardGroup> inner_, outer_;
  std::optional<Duration> timeout_;
  std::map<const ShardGroup*, std::weak_ptr<ShardGroup>> inside_;  // by outer
};

struct Part {
  std::string name;           // of the whole: "blocks.0.fc.weight"
  layout::TensorSlice slice;  // the elements of the whole that are here
  std::int64_t offset = 0;    // where they begin in the storage, in elements
  // Null: that of all parts in the storage.
  std::shared_ptr<ShardGroup> division = nullptr;
};

// The parts that lie in one storage, by offset.
class Parts {
 public:
  Parts(std::shared_ptr<ShardGroup> division, std::vector<Part> parts);

  // The ranks that hold the other parts of its whole.
  [[nodiscard]] const std::shared_ptr<ShardGroup>& division_of(const Part& part) const {
    return part.division ? part.division : division_;
  }
  // The part of `count` elements at an element of the storage; of any count if there is none.
  [[nodiscard]] const Part& at(std::int64_t offset, std::int64_t count) const;
  // The one that was given as number i.
  [[nodiscard]] const Part& number(std::size_t i) const { return parts_[i]; }

 private:
  std::shared_ptr<ShardGroup> division_;
  std::vector<Part> parts_;
};

// Local, any thread. Null when `tensor` is not a part.
[[nodiscard]] std::shared_ptr<const Parts> parts_of(const at::Tensor& tensor);

// Local, any thread. The part that a tensor is: null when it is none. Valid while its storage is.
[[nodiscard]] const Part* part_of(const at::Tensor& tensor);
// The ranks that hold the others; null when it is none.
[[nodiscard]] std::shared_ptr<ShardGroup> division_of(const at::Tensor& tensor);

// An ordinary tensor on the memory of a part, which must be there: operations do not know that it
// is one. Other tensors come back as they are.
[[nodiscard]] at::Tensor values_of(const at::Tensor& tensor);

}  // namespace lockstep::dispatch

#pragma GCC visibility pop
