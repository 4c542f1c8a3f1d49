// FlatLayout: the offsets of several tensors in one flat storage. Pure arithmetic, the same on
// every rank that passes the same tensors. DDP's buckets, its coalesced broadcasts and sharded
// units use it.
//
//   offset   0            12  16        20     24
//            | a.weight   |pad| b.weight | pad |     alignment 16 bytes, multiple 8, float: numel()
//            is 24
//
// A tensor that occurs twice (a tied weight: equal, non-null `identity`) gets one place, which both
// entries name.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::layout {

// The dtype of the elements: a unique name ("Float"; a literal), and their size.
struct Dtype {
  std::string_view name = "Float";
  std::int64_t bytes = 4;
  bool operator==(const Dtype&) const = default;
};

// The description of a tensor for the arithmetic.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> sizes;
  Dtype dtype = {};
  const void* identity = nullptr;  // equal for tied tensors (the TensorImpl); null: not tied
  bool follows = false;            // begins at the end of the tensor before it, even if not aligned
};

// The place of one tensor. Offsets and counts are in elements of the layout's dtype.
struct FlatEntry {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::int64_t numel = 0;
  std::int64_t offset = 0;
  bool tied = false;  // an earlier entry has the same place
};

// A piece of one tensor inside a rank's shard of the flat storage.
struct FlatSlice {
  int entry = 0;
  Range of_tensor;          // elements of the tensor, row-major
  std::int64_t offset = 0;  // where they begin, relative to the shard's begin
};

struct FlatOptions {
  std::int64_t alignment = 64;  // bytes: every tensor begins at a multiple of it (a cache line)
  std::int64_t multiple = 1;    // elements: numel() is padded to a multiple of it (a group's size)
};

class FlatLayout {
 public:
  // Places the tensors in the given order. Throws InvalidArgument if dtypes differ, a size is
  // negative, tied tensors differ in sizes, or the alignment is not a multiple of the element size.
  explicit FlatLayout(std::span<const TensorSpec> tensors, FlatOptions options = {});

  // One per tensor, in the given order.
  [[nodiscard]] const std::vector<FlatEntry>& entries() const { return entries_; }
  [[nodiscard]] const FlatEntry& entry(int i) const {
    return entries_.at(static_cast<std::size_t>(i));
  }

  // numel() counts the elements of the flat storage, including padding; used() counts them without
  // padding, each tied tensor once.
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  [[nodiscard]] std::int64_t used() const { return used_; }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] Dtype dtype() const { return dtype_; }

 private:
  void place(const TensorSpec& tensor, std::int64_t alignment);

  std::vector<FlatEntry> entries_;
  std::vector<const void*> identities_;
  std::int64_t numel_ = 0;
  std::int64_t used_ = 0;
  Dtype dtype_;
};

// The plan of units: groups of parameters that are gathered and released together, and the part
// that each rank keeps. Pure: the same on every rank that passes the same items and patterns.
//
// A unit is one flat storage, so its parameters have one kind (dtype, device, whether they train).
// If a module has parameters of several kinds, each kind becomes its own unit, named "blocks.0",
// "blocks.0 (2)", ...

// The description of a parameter for the plan.
struct UnitItem {
  std::string name;                       // "blocks.0.fc.weight"
  std::string kind = "";                  // common to all parameters of a unit
  std::vector<std::string> aliases = {};  // its other names if the weight is tied
};

struct PlannedUnit {
  std::string name;        // the module's path: "blocks.0"; "rest" for unmatched parameters
  int pattern = -1;        // the pattern that made the unit; -1 for the rest
  std::vector<int> items;  // in the given order
  bool operator==(const PlannedUnit&) const = default;
};

// Assigns each parameter to the deepest module around it (or to itself) that a pattern matches,
// using the first pattern that does (lockstep/layout/name_pattern.h); a tied parameter uses the
// first of its names with a match. The plan contains each item exactly once; units are in the order
// of their first items. Throws InvalidArgument for a pattern that matches nothing; the message
// suggests a likely name.
[[nodiscard]] std::vector<PlannedUnit> plan_units(std::span<const UnitItem> items,
                                                  std::span<const std::string> patterns);

// Returns the layout of a unit: tensors begin at multiples of `alignment` bytes, and the total is
// padded so that the shards of `world` ranks have equal lengths and also begin at such multiples.
[[nodiscard]] FlatLayout unit_layout(std::span<const TensorSpec> tensors, int world,
                                     std::int64_t alignment = 64);

// Returns the slice of each distinct tensor that rank `rank` keeps, in the layout's order. The
// slices are contiguous in its shard except for the padding between tensors; a slice is empty if
// other ranks have the whole tensor. Offsets are relative to the shard's begin.
[[nodiscard]] std::vector<FlatSlice> owned_slices(const FlatLayout& layout, int world, int rank);

// The plan of buckets: groups of parameters that are reduced together. Pure: the same plan on every
// rank that passes the same items and order.
//
// A bucket fills up in the order in which gradients become ready and is closed when it reaches its
// limit, so its last parameter may exceed the limit. The first bucket is small, so that
// communication begins early. Parameters of another kind fill a separate bucket; if kinds
// alternate, each keeps its bucket open. A large parameter gets its own bucket. Buckets are in the
// order in which their last parameters become ready.

// The description of a parameter for the plan.
struct PlanItem {
  std::int64_t bytes = 0;
  std::string kind = "";  // dtype and device: common to all parameters of a bucket
};

struct PlanOptions {
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // 1 MiB
  std::int64_t bucket_bytes = std::int64_t{25} << 20;       // 25 MiB
  // Parameters of at least this many bytes get their own bucket. All limits must be at least 1.
  std::int64_t alone_bytes = std::numeric_limits<std::int64_t>::max();
};

// Item numbers, bucket by bucket, in the given order within each.
using BucketPlan = std::vector<std::vector<int>>;

// Returns count - 1, ..., 1, 0: the expected order of gradients before the first backward().
[[nodiscard]] std::vector<int> reverse_order(int count);

// The returned plan contains each item exactly once. Throws InvalidArgument unless `order` is a
// permutation of the items' numbers and the limits are positive.
[[nodiscard]] BucketPlan plan_buckets(std::span<const PlanItem> items, std::span<const int> order,
                                      PlanOptions options = {});

// Completes an order of gradients in which some parameters are missing: appends the missing numbers
// below `count` to `observed`, in descending order.
[[nodiscard]] std::vector<int> complete_order(std::span<const int> observed, int count);

}  // namespace lockstep::layout
