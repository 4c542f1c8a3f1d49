// The parallel plans of the models in lockstep/models, for parallelize() (parallelize.h).
//
//   lockstep::ParallelPlan plan = lockstep::parallel_plan(gpt);
//   auto stages = lockstep::split(*gpt, plan.pieces, lockstep::even_points(plan.pieces, 4));
//
// Pieces share the modules with the model. All functions are local.
#pragma once

#include <lockstep/models/conv_net.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mlp.h>
#include <lockstep/models/moe.h>
#include <lockstep/models/resnet.h>
#include <lockstep/parallel/parallel_plan.h>

#pragma GCC visibility push(default)

namespace lockstep {

// Pieces: the embedding, each block, and the last normalisation with the head; from tokens
// [rows, tokens] to logits [rows, tokens, vocabulary]. A Moe's blocks pass the sum of the mixtures'
// losses on, and in train() the head returns it as a second output. The loss is token_loss().
[[nodiscard]] ParallelPlan parallel_plan(const models::Gpt& model);
[[nodiscard]] ParallelPlan parallel_plan(const models::Llama& model);
[[nodiscard]] ParallelPlan parallel_plan(const models::Moe& model);
// Pieces: the stem, each residual block, and the classifier. No tensor plan: the convolutions are
// too small to gain from one. The loss is the mean cross-entropy of the logits.
[[nodiscard]] ParallelPlan parallel_plan(const models::ResNet18& model);
// Pieces: each layer with its ReLU. Layers are cut by columns and rows in turn. No loss.
[[nodiscard]] ParallelPlan parallel_plan(const models::Mlp& model);
// No pieces and no tensor plan. The loss is nll_loss.
[[nodiscard]] ParallelPlan parallel_plan(const models::ConvNet& model);

// The tensor plans alone. The number of ranks must divide the heads (Gpt, Moe), or the heads of
// keys and values (Llama). A Moe's plan leaves the experts out.
[[nodiscard]] TensorPlan gpt_tensor_plan(const models::GptOptions& options);
[[nodiscard]] TensorPlan moe_tensor_plan(const models::MoeOptions& options);
[[nodiscard]] TensorPlan llama_tensor_plan(const models::LlamaOptions& options);

// Mean cross-entropy of the tokens that follow; a target of -1 is not counted. Adds the further
// outputs, which are losses: the loss() of Gpt, Llama and Moe.
[[nodiscard]] at::Tensor token_loss(const Tensors& outputs, const Tensors& targets);

}  // namespace lockstep

#pragma GCC visibility pop
