// FlatLayout: where each of some tensors lies when they share one flat storage. Pure arithmetic,
// the same on every rank that passes the same tensors; DDP's buckets, its coalesced broadcasts and
// sharded units are all laid out by it.
//
//   offset   0            12  16        20     24
//            | a.weight   |pad| b.weight | pad |     alignment 16 bytes, multiple 8, float: numel()
//            is 24
//
// A tensor that comes twice (a tied weight: equal, non-null `identity`) gets one place, and both
// entries name it.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::layout {

// What its elements are: a name that tells it from others ("Float"; a literal), and their size.
struct Dtype {
  std::string_view name = "Float";
  std::int64_t bytes = 4;
  bool operator==(const Dtype&) const = default;
};

// What the arithmetic needs to know of a tensor.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> sizes;
  Dtype dtype = {};
  const void* identity = nullptr;  // equal for tied tensors (its TensorImpl); null: tied to nothing
  bool follows = false;            // it begins where the one before it ends, aligned or not
};

// One tensor's place. Offsets and counts are in elements of the layout's dtype.
struct FlatEntry {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::int64_t numel = 0;
  std::int64_t offset = 0;
  bool tied = false;  // an earlier entry has the same place
};

// A piece of one tensor inside a range of the flat storage.
struct FlatSlice {
  int entry = 0;
  Range of_tensor;          // elements of the tensor, row-major
  std::int64_t offset = 0;  // where they begin, counted from the range's begin
};

struct FlatOptions {
  std::int64_t alignment =
      64;  // bytes: every tensor begins at a multiple of it (a cache line; a vector register)
  std::int64_t multiple = 1;  // elements: the whole is padded to a multiple of it (a group's size)
};

class FlatLayout {
 public:
  // In the order given. InvalidArgument when dtypes differ, a size is negative, tied tensors differ
  // in sizes, or the alignment is not a multiple of an element's size.
  explicit FlatLayout(std::span<const TensorSpec> tensors, FlatOptions options = {});

  // One a tensor, in the order given.
  [[nodiscard]] const std::vector<FlatEntry>& entries() const { return entries_; }
  [[nodiscard]] const FlatEntry& entry(int i) const {
    return entries_.at(static_cast<std::size_t>(i));
  }

  // Elements of the flat storage, padding included; and without any padding, each tied tensor once.
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  [[nodiscard]] std::int64_t used() const { return used_; }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] Dtype dtype() const { return dtype_; }

  // The pieces of tensors that lie in `range`, by offset; padding belongs to none and a tied tensor
  // comes once. What a rank that owns `range` holds.
  [[nodiscard]] std::vector<FlatSlice> slices_in(Range range) const;

 private:
  void place(const TensorSpec& tensor, std::int64_t alignment);

  std::vector<FlatEntry> entries_;
  std::vector<const void*> identities_;
  std::int64_t numel_ = 0;
  std::int64_t used_ = 0;
  Dtype dtype_;
};

// Which parameters are gathered and released together, and which part of them each rank keeps.
// Pure: the same on every rank that passes the same items and patterns.
//
// A unit is one flat storage, so it has one kind of parameters (dtype, device, whether they train):
// where a module has several, each kind is a unit of its own, named "blocks.0", "blocks.0 (2)", ...

// What the plan needs to know of a parameter.
struct UnitItem {
  std::string name;                       // "blocks.0.fc.weight"
  std::string kind = "";                  // what all parameters of a unit have in common
  std::vector<std::string> aliases = {};  // its other names, where a weight is tied
};

struct PlannedUnit {
  std::string name;        // the module's path: "blocks.0"; "rest" for what no pattern names
  int pattern = -1;        // the pattern that made it; -1 for the rest
  std::vector<int> items;  // in the order given
  bool operator==(const PlannedUnit&) const = default;
};

// A parameter belongs to the deepest of the modules around it (or to itself) that a pattern names,
// by the first pattern that does (lockstep/layout/name_pattern.h); a tied one by the first of its
// names for which there is one. Every item comes once; units come in the order of their first
// items. InvalidArgument for a pattern that names nothing: it says what was probably meant.
[[nodiscard]] std::vector<PlannedUnit> plan_units(std::span<const UnitItem> items,
                                                  std::span<const std::string> patterns);

// The layout of a unit: tensors begin at multiples of `alignment` bytes, and the whole is padded so
// that the shards of `world` ranks are equally long and begin at such multiples too.
[[nodiscard]] FlatLayout unit_layout(std::span<const TensorSpec> tensors, int world,
                                     std::int64_t alignment = 64);

// What rank `rank` keeps of each distinct tensor, in the layout's order: side by side in its shard
// but for the padding between tensors, and empty where another rank has all of it. Offsets count
// from the shard's begin.
[[nodiscard]] std::vector<FlatSlice> owned_slices(const FlatLayout& layout, int world, int rank);

// Which parameters are reduced together. Pure: the same plan on every rank that passes the same
// items and order.
//
// A bucket fills up in the order in which gradients become ready; it is closed when it has reached
// its limit, so it may exceed it by part of its last parameter. The first bucket is small, so that
// communication begins early. Parameters of another kind fill a bucket of their own, and where
// kinds alternate each keeps its bucket open. A large parameter is a bucket of its own. Buckets
// come in the order in which their last parameters become ready.

// What the plan needs to know of a parameter.
struct PlanItem {
  std::int64_t bytes = 0;
  std::string kind = "";  // dtype and device: what all parameters of a bucket have in common
};

struct PlanOptions {
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // 1 MiB
  std::int64_t bucket_bytes = std::int64_t{25} << 20;       // 25 MiB
  // From so many bytes on a parameter is a bucket of its own. All at least 1.
  std::int64_t alone_bytes = std::numeric_limits<std::int64_t>::max();
};

// Item numbers, bucket by bucket, in the order given within each.
using BucketPlan = std::vector<std::vector<int>>;

// count - 1, ..., 1, 0: what backward is expected to do before it has been seen.
[[nodiscard]] std::vector<int> reverse_order(int count);

// Every item once. InvalidArgument unless `order` is a permutation of the items' numbers and the
// limits are positive.
[[nodiscard]] BucketPlan plan_buckets(std::span<const PlanItem> items, std::span<const int> order,
                                      PlanOptions options = {});

// `observed` with the numbers below `count` that are not in it appended, greatest first: an order
// of readiness in which some parameters had no part.
[[nodiscard]] std::vector<int> complete_order(std::span<const int> observed, int count);

}  // namespace lockstep::layout
