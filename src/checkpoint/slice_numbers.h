// Finds equal slices of one tensor without pairwise comparison: 1,000 ranks may have as many slices
// of each tensor.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstddef>
#include <map>
#include <tuple>

namespace lockstep::checkpoint {

class SliceNumbers {
 public:
  // Returns numbers from 0 in the order of first occurrence; equal slices have the same number. All
  // slices must belong to the same tensor. `slice` must outlive this object.
  std::size_t operator()(const layout::TensorSlice& slice) {
    return numbers_.try_emplace(&slice, numbers_.size()).first->second;
  }

 private:
  struct Less {
    static auto key(const layout::TensorSlice& slice) {
      return std::tie(slice.box.offsets, slice.range.begin, slice.range.end, slice.box.sizes,
                      slice.dim_order);
    }
    bool operator()(const layout::TensorSlice* a, const layout::TensorSlice* b) const {
      return key(*a) < key(*b);
    }
  };

  std::map<const layout::TensorSlice*, std::size_t, Less> numbers_;
};

}  // namespace lockstep::checkpoint
