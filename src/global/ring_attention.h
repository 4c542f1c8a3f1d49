// Ring attention (Liu, Zaharia and Abbeel, arXiv:2310.01889): scaled dot-product attention of
// queries, keys and values that are sharded along the sequence.
//
// Keys and values travel around the ring, while LibTorch's own kernel computes with those that have
// arrived; no rank ever holds the keys of more than two ranks. The results of the steps are
// combined by their logsumexp, in float for 16-bit dtypes. In backward, keys and values travel
// around again. Their gradients follow one step behind, with one more step at the end that returns
// them to their owner.
#pragma once

#include "global/mesh_context.h"

#include <lockstep/global/placement.h>
#include <lockstep/global/rule.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::global {

// The steps of ring attention (Liu, Zaharia and Abbeel, arXiv:2310.01889): which queries and keys a
// rank combines in each step. Pure arithmetic.
//
// Queries, keys and values are sharded along the sequence in the same way. Keys and values travel
// around the ring, from each rank to the next: in step s, a rank has those of rank (rank - s) mod
// n. Under a causal mask, a query attends to the keys up to its own position, so with a plain shard
// the first rank has the least work and the last rank the most. In zigzag order, all ranks have
// equal work.

// In this step, the rank's queries from `first_query` on attend to the first `keys` keys of
// `source`, in the local order of the ranks. If `is_causal`, a causal mask applies to this block,
// starting at its first query and its first key; otherwise, each query attends to all of these
// keys.
struct RingStep {
  int source = 0;
  std::int64_t first_query = 0;
  std::int64_t queries = 0;  // number of queries, starting at first_query
  std::int64_t keys = 0;     // 0: none
  bool is_causal = false;

  // Returns the number of query-key products.
  [[nodiscard]] std::int64_t scores() const {
    return is_causal ? queries * (queries + 1) / 2 : queries * keys;
  }
};

// Returns one step per rank, starting with the rank's own keys. `queries` and `keys` are the
// lengths of the whole sequences; they must be equal if `is_causal`.
[[nodiscard]] std::vector<RingStep> ring_steps(int ranks, int rank, Placement cut, bool is_causal,
                                               std::int64_t queries, std::int64_t keys);

// Where one of LibTorch's attention kernels has its arguments and results, as numbers. All of them
// have query, key and value in a row, first in forward and second in backward, and is_causal. The
// first results are output and logsumexp, or the gradients; of the others, the caller gets those of
// one step.
struct AttentionForm {
  std::size_t causal = 0;
  // Forward.
  std::size_t results = 2;
  std::optional<std::size_t> keeps_sums = {};  // argument: whether logsumexp is computed
  // Backward.
  std::size_t sums = 5;                           // argument: logsumexp; the output is before it
  std::optional<std::size_t> longest = {};        // argument: number of queries; keys are after it
  std::optional<std::size_t> gradient_mask = {};  // argument: which gradients are computed
  // The tokens of the kernel's logsumexp are rounded up to a multiple; it may have a last dim of 1.
  std::int64_t alignment = 1;
  bool has_last_dim = false;
};

class RingAttention {
 public:
  using Kernel = std::function<void(torch::jit::Stack& stack)>;

  // `axis` is the mesh axis along which `cut` shards the tokens (dim 2). `run` calls LibTorch's
  // kernel; it takes `arguments` arguments. The context must outlive this object.
  RingAttention(MeshContext& context, int axis, Placement cut, bool is_causal, std::int64_t queries,
                std::int64_t keys, Kernel run, std::size_t arguments, AttentionForm form);

  // Run the kernel, or its backward, on the stack. Collective.
  void forward(torch::jit::Stack& stack) const;
  void backward(torch::jit::Stack& stack) const;

 private:
  class Ring;

  // Returns the logsumexp of a step as [rows, heads, tokens], and as the kernel has it.
  [[nodiscard]] at::Tensor plain_sums(const at::Tensor& sums, std::int64_t tokens) const;
  [[nodiscard]] at::Tensor kernel_sums(const at::Tensor& sums) const;

  MeshContext& context_;
  int axis_;
  Placement cut_;
  std::int64_t keys_;
  Kernel run_;
  std::size_t arguments_;
  AttentionForm form_;
  std::vector<RingStep> steps_;
};

}  // namespace lockstep::global
