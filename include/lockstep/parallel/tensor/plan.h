// TensorPlan: which parameters of a model are sharded over the ranks of tensor parallelism, and how
// (Shoeybi et al., arXiv:1909.08053). Pure values.
//
//   lockstep::TensorPlan plan = {
//       {"layers.*.attention.qkv", lockstep::Colwise(3).heads(12)},
//       {"layers.*.attention.out", lockstep::Rowwise()},
//       {"layers.*.up", lockstep::Colwise()},
//       {"layers.*.down", lockstep::Rowwise()},
//       {"embedding", lockstep::Vocabulary()},
//   };
//
// A name is a pattern (lockstep/layout/name_pattern.h) of parameters, or of the modules that they
// are registered in. Parameters that match no pattern are replicated.
#pragma once

#include <lockstep/global/placement.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

// How the parameters that match a pattern are sharded.
class TensorStyle {
 public:
  enum class Kind : std::uint8_t { colwise, rowwise, vocabulary };

  [[nodiscard]] constexpr Kind kind() const { return kind_; }
  // Set for a colwise style; otherwise 1 and 0.
  [[nodiscard]] constexpr int parts() const { return parts_; }
  [[nodiscard]] constexpr std::int64_t head_count() const { return heads_; }
  // Returns the placement of a parameter with `dims` dims.
  [[nodiscard]] Placement placement(std::int64_t dims) const;

  constexpr bool operator==(const TensorStyle&) const = default;

 protected:
  constexpr TensorStyle(Kind kind, int parts, std::int64_t heads)
      : heads_(heads), parts_(parts), kind_(kind) {}

  std::int64_t heads_;
  int parts_;
  Kind kind_;
};

// Each rank computes its part of the outputs: Shard(0) of a weight [out, in] and of its bias, so
// that the outputs are sharded along their last dim, without communication. `parts`: the outputs
// consist of this many blocks of equal length, such as queries, keys and values (3), and a rank
// computes its part of each.
struct Colwise : TensorStyle {
  explicit constexpr Colwise(int parts = 1) : TensorStyle(Kind::colwise, parts, 0) {}
  // The outputs (of each part) are `count` heads of equal length: the number of ranks must divide
  // `count`.
  [[nodiscard]] constexpr Colwise heads(std::int64_t count) const {
    Colwise style = *this;
    style.heads_ = count;
    return style;
  }
};

// Takes the outputs of a Colwise() layer: Shard(1) of a weight [out, in]. Its outputs are sums over
// the ranks, and the bias is replicated.
struct Rowwise : TensorStyle {
  constexpr Rowwise() : TensorStyle(Kind::rowwise, 1, 0) {}
};

// An embedding table, or a prediction layer: Shard(0), rows of the vocabulary. The ranks may have
// different numbers of rows.
struct Vocabulary : TensorStyle {
  constexpr Vocabulary() : TensorStyle(Kind::vocabulary, 1, 0) {}
};

using TensorPlan = std::vector<std::pair<std::string, TensorStyle>>;

// How attention combines the tokens of a sequence that is sharded over axis cp (parallelize.h).
enum class ContextMethod : std::uint8_t { ring, ulysses };

// "Colwise", "Colwise(3), 12 heads", "Rowwise", "Vocabulary".
[[nodiscard]] std::string describe(TensorStyle style);

// For torch::nn::Transformer, and the encoder and decoder layers of torch::nn inside any module:
// `prefix` is the part of the names before "encoder" and "decoder", for example "model.".
[[nodiscard]] TensorPlan transformer_tensor_plan(std::int64_t heads,
                                                 const std::string& prefix = "");

// Not collective. Describes the effect of a plan on a model with `ranks` ranks, without applying
// it, as a text of several lines: each pattern with its matches, bytes of parameters per rank, and
// collectives per layer. Throws InvalidArgument, which names a pattern that matches nothing (and
// suggests a name), a parameter that two patterns shard differently, parts or heads that the ranks
// do not divide, or a parameter without dims.
[[nodiscard]] std::string describe(const TensorPlan& plan, const torch::nn::Module& module,
                                   int ranks, bool sequence_parallel = false);

}  // namespace lockstep

#pragma GCC visibility pop
