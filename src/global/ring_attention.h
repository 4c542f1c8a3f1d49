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
#include "global/ring_steps.h"

#include <lockstep/global/rule.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::global {

class RingAttention {
 public:
  using Kernel = std::function<void(torch::jit::Stack& stack)>;

  // For an axis whose placement `cut` shards the tokens, which are dim 2. `run` calls LibTorch's
  // kernel for the operation with `arguments` arguments. The context must outlive this object.
  RingAttention(MeshContext& context, int axis, Placement cut, bool is_causal, std::int64_t queries,
                std::int64_t keys, Kernel run, std::size_t arguments);

  // Run _scaled_dot_product_flash_attention_for_cpu and its backward on the stack. Collective.
  void forward(torch::jit::Stack& stack) const;
  void backward(torch::jit::Stack& stack) const;

 private:
  class Ring;

  MeshContext& context_;
  int axis_;
  Placement cut_;
  std::int64_t keys_;
  Kernel run_;
  std::size_t arguments_;
  std::vector<RingStep> steps_;
};

}  // namespace lockstep::global
