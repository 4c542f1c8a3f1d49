// Plans which rank writes which elements of some tensors, and to which file: each element is
// written once. The functions are pure, and return the same on every rank that has the same lists.
#pragma once

#include "checkpoint/file_part.h"
#include "checkpoint/safetensors_header.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/layout/tensor_slice.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

namespace lockstep::checkpoint {

// A box of a tensor, with the rank from whose part it is taken.
struct PlannedBox {
  std::size_t shard = 0;
  std::size_t tensor = 0;  // number in the entries of the shard's header
  int holder = 0;
  layout::Box box;
};

struct WritePlan {
  std::vector<SafetensorsHeader> shards;  // at least one; checksums are zeros
  std::vector<PlannedBox> boxes;          // of the wanted ranks, by tensor

  [[nodiscard]] const TensorEntry& entry(const PlannedBox& box) const {
    return shards[box.shard].entries[box.tensor];
  }
};

// `by_rank`: each rank's parts. If several ranks have the same slice, a large slice is divided
// among them evenly, a small slice goes to the rank that has the fewest bytes so far, and a slice
// of a buffer goes to the lowest rank. `wanted[rank]`: true if the rank's boxes go into the plan.
// Throws InvalidArgument, which names the tensor, if ranks have it in different dtypes or sizes, it
// is incomplete, or it cannot be stored in a file.
[[nodiscard]] WritePlan plan_writing(const std::vector<std::vector<Part>>& by_rank,
                                     const Metadata& metadata, const std::vector<bool>& wanted,
                                     const Sharding& sharding = {});

// Returns the `wanted` of a rank that needs its own boxes.
[[nodiscard]] inline std::vector<bool> only(const Group& group) {
  std::vector<bool> wanted(static_cast<std::size_t>(group.size()));
  wanted[static_cast<std::size_t>(group.rank())] = true;
  return wanted;
}

// The parts that ranks have of one tensor. Finds parts with equal slices without pairwise
// comparison: 1,000 ranks may have as many slices of each tensor.
class PartsBySlice {
 public:
  struct Holder {
    int rank = 0;
    const Part* part = nullptr;
  };
  // The parts with one slice, in the order in which they were added.
  struct Same {
    const Part* part = nullptr;  // the first of them
    std::vector<Holder> holders;
  };

  // All parts must belong to the same tensor. `part` must outlive this object.
  void add(int rank, const Part& part) {
    const auto [found, is_new] = numbers_.try_emplace(&part.slice, all_.size());
    if (is_new) all_.push_back({&part, {}});
    all_[found->second].holders.push_back({rank, &part});
  }

  // Returns the slices in the order of first occurrence.
  [[nodiscard]] const std::vector<Same>& all() const { return all_; }

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

  std::vector<Same> all_;
  std::map<const layout::TensorSlice*, std::size_t, Less> numbers_;  // indices in all_
};

}  // namespace lockstep::checkpoint
