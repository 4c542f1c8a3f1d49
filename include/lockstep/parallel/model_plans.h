// The parallel plans of the models in lockstep/models, for parallelize() (parallelize.h).
//
//   lockstep::ParallelPlan plan = lockstep::parallel_plan(gpt);
//   auto stages = lockstep::split(*gpt, plan.pieces, lockstep::even_points(plan.pieces, 4));
//
// Pieces share the modules with the model. No function here is collective.
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

// Pieces: the embedding, each block, and the last normalisation with the head; from tokens [rows,
// tokens] to logits [rows, tokens, vocabulary]. The blocks of a Moe pass on the sum of the
// mixtures' losses, and in train() the head returns it as a second output. The loss is
// token_loss().
[[nodiscard]] ParallelPlan parallel_plan(const models::Gpt& model);
[[nodiscard]] ParallelPlan parallel_plan(const models::Llama& model);
[[nodiscard]] ParallelPlan parallel_plan(const models::Moe& model);
// Pieces: the stem, each residual block, and the classifier. No tensor plan: the convolutions are
// too small to gain from one. The loss is the mean cross-entropy of the logits.
[[nodiscard]] ParallelPlan parallel_plan(const models::ResNet18& model);
// Pieces: each layer with its ReLU. Layers are split by columns and rows alternately. No loss.
[[nodiscard]] ParallelPlan parallel_plan(const models::Mlp& model);
// No pieces and no tensor plan. The loss is nll_loss.
[[nodiscard]] ParallelPlan parallel_plan(const models::ConvNet& model);

// The tensor plans only. The number of ranks must divide the number of heads (Gpt, Moe) or of
// key-value heads (Llama). The plan of a Moe does not contain the experts.
[[nodiscard]] TensorPlan gpt_tensor_plan(const models::GptOptions& options);
[[nodiscard]] TensorPlan moe_tensor_plan(const models::MoeOptions& options);
[[nodiscard]] TensorPlan llama_tensor_plan(const models::LlamaOptions& options);

// Mean cross-entropy of the next tokens; a target of -1 is ignored. Adds the additional outputs,
// which are losses: the loss() of Gpt, Llama and Moe.
[[nodiscard]] at::Tensor token_loss(const Tensors& outputs, const Tensors& targets);

}  // namespace lockstep

#pragma GCC visibility pop
