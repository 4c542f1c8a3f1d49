// A small model of blocks, and the oracle of pipelines: the results of one process that computes
// micro-batch by micro-batch.
#pragma once

#include <lockstep/dispatch/part.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/pipeline/pipeline.h>

#include "parallel/support.h"

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep::test {

constexpr std::int64_t block_width = 6;
constexpr int block_count = 8;  // two stages on each of four ranks

// A residual block with several kinds of parameters: matrices of products, a normalisation, a
// factor.
struct PipedBlockImpl : torch::nn::Module {
  PipedBlockImpl()
      : norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({block_width})))),
        up(register_module("up", torch::nn::Linear(block_width, 2 * block_width))),
        down(register_module("down", torch::nn::Linear(2 * block_width, block_width))),
        factor(register_parameter("factor", torch::ones({block_width}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + factor * down(torch::nn::functional::gelu(up(norm(x))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  at::Tensor factor;
};
TORCH_MODULE(PipedBlock);

inline torch::nn::Sequential blocks(int count, std::int64_t seed = 3) {
  torch::nn::Sequential model;
  for (int i = 0; i < count; ++i) model->push_back(PipedBlock());
  fill_parameters(*model, seed);
  return model;
}

// Cuts before every (count / stages)-th of `count` children.
inline std::vector<std::string> even_points(int count, int stages) {
  std::vector<std::string> points;
  for (int stage = 1; stage < stages; ++stage)
    points.push_back(std::to_string(count * stage / stages));
  return points;
}

inline at::Tensor squared_error(const Tensors& outputs, const Tensors& targets) {
  return (outputs.front() - targets.front()).square().mean();
}

struct PipedBatch {
  Tensors inputs, targets;
};

inline PipedBatch piped_batch(std::int64_t rows, std::int64_t seed) {
  return {{values({rows, block_width}, seed)}, {values({rows, block_width}, seed + 1000)}};
}

using Gradients = std::map<std::string, at::Tensor>;

// Computes the micro-batches one after the other in one process; returns the loss and adds to the
// gradients.
inline at::Tensor one_process_step(const StageForward& model, const PipelineLoss& loss_of,
                                   const PipedBatch& batch, int micro_batches) {
  const std::int64_t rows = batch.inputs.front().size(0);
  at::Tensor total;
  for (int b = 0; b < micro_batches; ++b) {
    const std::int64_t begin = rows * b / micro_batches, end = rows * (b + 1) / micro_batches;
    const auto cut = [&](const Tensors& tensors) {
      Tensors parts;
      for (const at::Tensor& tensor : tensors)
        parts.push_back(tensor.narrow(0, begin, end - begin));
      return parts;
    };
    const double share = static_cast<double>(end - begin) / static_cast<double>(rows);
    const at::Tensor loss = loss_of(model(cut(batch.inputs)), cut(batch.targets)) * share;
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

inline Gradients gradients_of(const torch::nn::Module& module) {
  Gradients gradients;
  for (const NamedParameter& parameter : unique_parameters(module))
    gradients[parameter.name] = parameter.tensor.grad();
  return gradients;
}

inline void expect_same_bits(const at::Tensor& found, const at::Tensor& expected,
                             const std::string& what) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (found.defined())
    EXPECT_TRUE(same_bits(dispatch::values_of(found.detach()), expected))
        << what << "\nfound " << dispatch::values_of(found.detach()) << "\nexpected " << expected;
}

// Expects this rank's gradients to equal those of one process.
inline void expect_gradients(const Pipeline& pipeline, const Gradients& expected,
                             const std::string& where) {
  for (const Part& part : pipeline.named_parameters())
    expect_same_bits(part.tensor.grad(), expected.at(part.name), where + ", " + part.name);
}

}  // namespace lockstep::test
