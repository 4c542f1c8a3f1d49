// Placement: how a global tensor (lockstep/global/tensor.h) is placed along one axis of its mesh.
// The terms are those of PyTorch's DTensor and of OneFlow's global tensors (SBP). Pure values.
//
//   Replicate()      every rank has the whole tensor
//   Shard(0)         rank r has part r of dim 0
//   Shard(0).zigzag()   of 2n parts of dim 0, rank r has parts r and 2n - 1 - r
//   Partial()        the tensor is the sum of the ranks' tensors
//
// Shard splits a dim as torch.chunk does: each rank has ceil(length / ranks) elements of the dim
// until no more are left, so that later ranks may have fewer, or none
// (lockstep/layout/tensor_slice.h). If several axes shard one dim, the first axis splits the whole
// dim, and each later axis splits the part that the axes before it left.
//
// In zigzag order, the dim is split into twice as many parts as there are ranks, and each rank has
// one part from the front and one from the back. This balances the ranks if the work grows along
// the dim, as in causal attention along the sequence.
#pragma once

#include <lockstep/comm/call.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

class Placement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, partial };

  constexpr Placement() = default;  // Replicate()

  [[nodiscard]] constexpr Kind kind() const { return kind_; }
  [[nodiscard]] constexpr bool is_replicate() const { return kind_ == Kind::replicate; }
  [[nodiscard]] constexpr bool is_shard() const { return kind_ == Kind::shard; }
  [[nodiscard]] constexpr bool is_partial() const { return kind_ == Kind::partial; }
  [[nodiscard]] constexpr bool is_shard_of(std::int64_t dim) const {
    return is_shard() && dim_ == dim;
  }
  // Values of a Shard; otherwise dim() is 0 and parts() is 1.
  [[nodiscard]] constexpr int dim() const { return dim_; }
  [[nodiscard]] constexpr int parts() const { return parts_; }
  [[nodiscard]] constexpr bool is_zigzag() const { return zigzag_; }
  // Reduction of a Partial; otherwise Op::sum.
  [[nodiscard]] constexpr Op op() const { return op_; }

  constexpr bool operator==(const Placement&) const = default;

 protected:
  constexpr Placement(Kind kind, int dim, int parts, Op op, bool zigzag = false)
      : kind_(kind),
        op_(op),
        zigzag_(zigzag),
        dim_(static_cast<std::int16_t>(dim)),
        parts_(parts) {}

 private:
  Kind kind_ = Kind::replicate;
  Op op_ = Op::sum;
  bool zigzag_ = false;
  std::int16_t dim_ = 0;
  std::int32_t parts_ = 1;
};

// Every rank of the axis has the whole tensor.
struct Replicate : Placement {
  constexpr Replicate() = default;
};

// Each rank of the axis has its part of `dim`; a negative dim counts from the end, and is resolved
// once the tensor is known. `parts`: number of equal, consecutive blocks in the dim, such as 3 for
// a fused weight of queries, keys and values. Each rank has its part of every block.
struct Shard : Placement {
  explicit constexpr Shard(int dim, int parts = 1) : Placement(Kind::shard, dim, parts, Op::sum) {}
  // Returns the same shard with zigzag order on or off.
  [[nodiscard]] constexpr Shard zigzag(bool is_so = true) const {
    return Shard(dim(), parts(), is_so);
  }

 private:
  constexpr Shard(int dim, int parts, bool zigzag)
      : Placement(Kind::shard, dim, parts, Op::sum, zigzag) {}
};

// The tensor is the reduction by `op` of the ranks' tensors, each of which has the sizes of the
// whole tensor.
struct Partial : Placement {
  explicit constexpr Partial(Op op = Op::sum) : Placement(Kind::partial, 0, 1, op) {}
};

// One placement per mesh axis, in the order of the axes.
using Placements = std::vector<Placement>;

// "Replicate", "Shard(1)", "Shard(0, parts=3)", "Shard(1, zigzag)", "Partial(sum)".
[[nodiscard]] std::string describe(Placement placement);
// "[Shard(0), Replicate]"
[[nodiscard]] std::string describe(std::span<const Placement> placements);

}  // namespace lockstep

#pragma GCC visibility pop
