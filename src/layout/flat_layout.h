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

#include <lockstep/layout/shard_range.h>

#include <cstdint>
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

}  // namespace lockstep::layout
