#include "elastic/warm_up.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

void warm_up() {
  constexpr std::int64_t rows = 2, heads = 2, block = 8, width = 16, words = 32;
  const auto parameter = [](at::IntArrayRef sizes) {
    return at::full(sizes, 0.01).requires_grad_(true);
  };
  std::vector<at::Tensor> parameters{parameter({words, width}), parameter({width, width}),
                                     parameter({width}), parameter({words, width})};
  const at::Tensor ids = at::zeros({rows, block}, at::kLong);
  at::Tensor x = at::embedding(parameters[0], ids);
  x = at::layer_norm(x, {width}, parameters[2], parameters[2]);
  const at::Tensor q = x.view({rows, block, heads, width / heads}).transpose(1, 2);
  x = at::scaled_dot_product_attention(q, q, q, std::nullopt, 0.0, true)
          .transpose(1, 2)
          .reshape({rows, block, width});
  x = at::gelu(at::linear(x, parameters[1], parameters[2]));
  const at::Tensor logits = at::linear(x, parameters[3]).view({rows * block, words});
  at::cross_entropy_loss(logits, ids.view({rows * block})).backward();
  torch::optim::AdamW(parameters).step();
}

}  // namespace lockstep
