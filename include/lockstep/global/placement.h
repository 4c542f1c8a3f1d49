// Placement: what a global tensor (lockstep/global/tensor.h) is along one axis of its mesh. The
// words are those of PyTorch's DTensor and of OneFlow's global tensors (SBP). Pure values.
//
//   Replicate()      every rank has all of it
//   Shard(0)         rank r has the r-th part of dim 0
//   Shard(0).zigzag()   of 2n parts of dim 0 rank r has part r and part 2n - 1 - r
//   Partial()        the tensor is the sum of what the ranks have
//
// A shard is the cut of torch.chunk: every rank has ceil(length / ranks) of the dim until they run
// out, so that later ranks may have less, or nothing (lockstep/layout/tensor_slice.h). Where
// several axes cut one dim, the first axis cuts the whole, and the next one what the first has
// left.
//
// In zigzag order the dim is cut into twice as many parts as there are ranks, of which each rank
// has one from the front and one from the back. Where work grows along a dim, as that of causal
// attention along the sequence, all ranks then have the same.
#pragma once

#include <lockstep/comm/op.h>

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
  // Of a shard; 0 and 1 else.
  [[nodiscard]] constexpr int dim() const { return dim_; }
  [[nodiscard]] constexpr int parts() const { return parts_; }
  [[nodiscard]] constexpr bool is_zigzag() const { return zigzag_; }
  // Of a partial; Op::sum else.
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

// Every rank of the axis has all of the tensor.
struct Replicate : Placement {
  constexpr Replicate() = default;
};

// Each rank of the axis has its part of `dim`; a negative one counts from the end where a tensor is
// at hand. `parts`: the dim is so many blocks of equal length one after the other, such as the
// queries, keys and values of one fused weight (3), and each rank has its part of every block.
struct Shard : Placement {
  explicit constexpr Shard(int dim, int parts = 1) : Placement(Kind::shard, dim, parts, Op::sum) {}
  // The same dim and parts, each part in zigzag order, or not.
  [[nodiscard]] constexpr Shard zigzag(bool is_so = true) const {
    return Shard(dim(), parts(), is_so);
  }

 private:
  constexpr Shard(int dim, int parts, bool zigzag)
      : Placement(Kind::shard, dim, parts, Op::sum, zigzag) {}
};

// The tensor is what `op` makes of the ranks' tensors, each of which has the sizes of the whole.
struct Partial : Placement {
  explicit constexpr Partial(Op op = Op::sum) : Placement(Kind::partial, 0, 1, op) {}
};

// One for each axis of a mesh, in the order of its axes.
using Placements = std::vector<Placement>;

// "Replicate", "Shard(1)", "Shard(0, parts=3)", "Shard(1, zigzag)", "Partial(sum)".
[[nodiscard]] std::string describe(Placement placement);
// "[Shard(0), Replicate]"
[[nodiscard]] std::string describe(std::span<const Placement> placements);

}  // namespace lockstep

#pragma GCC visibility pop
