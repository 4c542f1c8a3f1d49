// A user's model with its own parallel plan, for the tests of parallelize().
#pragma once

#include <lockstep/parallel/parallelize.h>

#include "parallel/composition.h"
#include "parallel/support.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <string>
#include <vector>

namespace lockstep::test {

// A user's model, which defines how it is parallelized.
struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + narrow(torch::tanh(wide(x))); }
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(Residual);

struct OwnNetImpl : torch::nn::Module {
  OwnNetImpl()
      : in(register_module("in", torch::nn::Linear(8, 12))),
        out(register_module("out", torch::nn::Linear(12, 1))),
        blocks(register_module("blocks",
                               torch::nn::Sequential(Residual(12), Residual(12), Residual(12)))) {
    fill_parameters(*this, 5);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return out(blocks->forward(in(x))); }
  torch::nn::Linear in, out;
  torch::nn::Sequential blocks;
};
TORCH_MODULE(OwnNet);

inline ParallelPlan parallel_plan(const OwnNet& net) {
  ParallelPlan plan{.tensor = {{"blocks.*.wide", Colwise()}, {"blocks.*.narrow", Rowwise()}},
                    .blocks = {"blocks.*"}};
  plan.pieces.push_back(piece_of("in", net->in));
  for (int i = 0; i < 3; ++i)
    plan.pieces.push_back(
        piece_of("blocks." + std::to_string(i), Residual(net->blocks->ptr<ResidualImpl>(i))));
  plan.pieces.push_back(piece_of("out", net->out));
  return plan;
}

// The same model without a plan.
struct PlainNetImpl : OwnNetImpl {
  at::Tensor forward(const at::Tensor& x) { return OwnNetImpl::forward(x); }
};
TORCH_MODULE(PlainNet);

inline at::Tensor mean_square(const Tensors& outputs, const Tensors& targets) {
  return (outputs[0] - targets[0]).square().mean();
}

struct OwnBatch {
  explicit OwnBatch(int seed, std::int64_t rows = 24)
      : x(values({rows, 8}, seed).to(at::kDouble)), y(x.sum(1, true)) {}
  at::Tensor x, y;
};

// Call after a step of both models: checks that the gradient norm of `model` equals that of one
// process.
inline void expect_norm_of(const torch::nn::Module& plain, ParallelModel& model,
                           double tolerance = 1e-11) {
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 1e9);
  EXPECT_NEAR(model.clip_grad_norm(1e9), norm, tolerance * norm);
}

}  // namespace lockstep::test
