// TensorPlan: which parameters of a model are cut over the ranks of tensor parallelism, and how
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
// A name is a pattern (lockstep/layout/name_pattern.h): of parameters, or of the modules that they
// are registered in. What no pattern names is whole on every rank.
#pragma once

#include <lockstep/global/placement.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

// How the parameters that a pattern names are cut.
class TensorStyle {
 public:
  enum class Kind : std::uint8_t { colwise, rowwise, vocabulary };

  [[nodiscard]] constexpr Kind kind() const { return kind_; }
  // Of a colwise one; 1 and 0 else.
  [[nodiscard]] constexpr int parts() const { return parts_; }
  [[nodiscard]] constexpr std::int64_t head_count() const { return heads_; }
  // Of a parameter with so many dims.
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
// that the outputs are cut along their last dim, without communication. `parts`: the outputs are so
// many blocks of equal length, such as queries, keys and values (3), of each of which a rank
// computes its part.
struct Colwise : TensorStyle {
  explicit constexpr Colwise(int parts = 1) : TensorStyle(Kind::colwise, parts, 0) {}
  // The outputs (of each part) are so many heads of equal length: the number of ranks must divide
  // them.
  [[nodiscard]] constexpr Colwise heads(std::int64_t count) const {
    Colwise style = *this;
    style.heads_ = count;
    return style;
  }
};

// Takes what Colwise() gives: Shard(1) of a weight [out, in]. Its outputs are sums over the ranks,
// and the bias is whole.
struct Rowwise : TensorStyle {
  constexpr Rowwise() : TensorStyle(Kind::rowwise, 1, 0) {}
};

// A table of embeddings, or a layer of predictions: Shard(0), rows of the vocabulary. The ranks may
// have different numbers of rows.
struct Vocabulary : TensorStyle {
  constexpr Vocabulary() : TensorStyle(Kind::vocabulary, 1, 0) {}
};

using TensorPlan = std::vector<std::pair<std::string, TensorStyle>>;

// How attention mixes the tokens of a sequence that ranks of axis cp have cut (parallelize.h).
enum class ContextMethod : std::uint8_t { ring, ulysses };

// "Colwise", "Colwise(3), 12 heads", "Rowwise", "Vocabulary".
[[nodiscard]] std::string describe(TensorStyle style);

// For torch::nn::Transformer, and the encoder and decoder layers of torch::nn inside any module:
// `prefix` are the names before "encoder" and "decoder", "model." for instance.
[[nodiscard]] TensorPlan transformer_tensor_plan(std::int64_t heads,
                                                 const std::string& prefix = "");

// Local: what a plan does to a model on `ranks` ranks, without doing it, as a text of several
// lines: each pattern with what it names, bytes of parameters a rank, and collectives a layer.
// InvalidArgument names a pattern that names nothing (and what was probably meant), a parameter
// that two patterns cut in two ways, parts or heads that do not divide, a parameter without dims.
[[nodiscard]] std::string describe(const TensorPlan& plan, const torch::nn::Module& module,
                                   int ranks, bool sequence_parallel = false);

}  // namespace lockstep

#pragma GCC visibility pop
