// Ring attention (Liu, Zaharia and Abbeel, arXiv:2310.01889): scaled dot-product attention of
// queries, keys and values that are cut along the sequence.
//
// Keys and values go round the ring while what has come is computed by LibTorch's own kernel; no
// rank ever has more than two ranks' keys. Results of the steps are combined by their logarithms of
// the sums of exponentials, in float for 16 bits. In backward keys and values go round again, and
// their gradients with them, one place behind and once more at the end, home.
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

  // Along an axis whose ranks have `cut` of the tokens, which are dim 2. `run` is LibTorch's
  // kernel for the operation with `arguments` arguments. The context outlives this.
  RingAttention(MeshContext& context, int axis, Placement cut, bool is_causal, std::int64_t queries,
                std::int64_t keys, Kernel run, std::size_t arguments);

  // Of _scaled_dot_product_flash_attention_for_cpu, and of its backward. Collective.
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
