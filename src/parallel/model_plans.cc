#include <lockstep/parallel/model_plans.h>

#include "base/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/relu.h>

#include <string>
#include <utility>

namespace lockstep {
namespace {

template <typename Block>
void add_blocks(std::vector<ModelPiece>& pieces, const torch::nn::ModuleList& blocks,
                const std::string& prefix) {
  for (std::size_t i = 0; i < blocks->size(); ++i) {
    const std::string name = formatted("{}.{}", prefix, i);
    auto block = blocks->ptr<Block>(i);
    pieces.push_back(
        {name, {name}, [block](const Tensors& x) { return Tensors{block->forward(x[0])}; }});
  }
}

const std::vector<std::string> head_modules = {"transformer.ln_f", "transformer.wte"};

// For a Gpt or a Moe.
template <typename Transformer>
ModelPiece embedding_of(const Transformer& transformer) {
  return {"embedding", {"transformer.wte", "transformer.wpe"}, [transformer](const Tensors& ids) {
            auto inside = transformer;
            const at::Tensor positions =
                at::arange(ids[0].size(1), ids[0].options().dtype(at::kLong));
            return Tensors{inside->drop->forward(inside->wte->forward(ids[0]) +
                                                 inside->wpe->forward(positions))};
          }};
}

template <typename Transformer>
at::Tensor logits_of(Transformer transformer, const at::Tensor& x) {
  return at::linear(transformer->ln_f->forward(x), transformer->wte->weight);
}

std::vector<ModelPiece> gpt_pieces(const models::Gpt& model) {
  std::vector<ModelPiece> pieces{embedding_of(model->transformer)};
  auto transformer = model->transformer;
  add_blocks<models::GptBlockImpl>(pieces, transformer->h, "transformer.h");
  pieces.push_back({"head", head_modules, [transformer](const Tensors& x) {
                      return Tensors{logits_of(transformer, x[0])};
                    }});
  return pieces;
}

// The mixtures' losses are passed from block to block beside the activations.
std::vector<ModelPiece> moe_pieces(const models::Moe& model) {
  std::vector<ModelPiece> pieces{embedding_of(model->transformer)};
  auto transformer = model->transformer;
  for (std::size_t i = 0; i < transformer->h->size(); ++i) {
    const std::string name = formatted("transformer.h.{}", i);
    auto block = transformer->h->ptr(i);
    pieces.push_back({name, {name}, [block](const Tensors& x) {
                        if (auto* dense = block->as<models::GptBlockImpl>()) {
                          Tensors passed = x;
                          passed[0] = dense->forward(x[0]);
                          return passed;
                        }
                        auto result = block->as<models::MoeBlockImpl>()->forward(x[0]);
                        if (x.size() > 1) result.loss = x[1] + result.loss;
                        return Tensors{result.output, result.loss};
                      }});
  }
  pieces.push_back({"head", head_modules, [transformer](const Tensors& x) {
                      const bool trains = transformer->ln_f->is_training();
                      Tensors outputs = x;
                      outputs[0] = logits_of(transformer, x[0]);
                      if (!trains) outputs.resize(1);
                      return outputs;
                    }});
  return pieces;
}

std::vector<ModelPiece> llama_pieces(const models::Llama& model) {
  std::vector<ModelPiece> pieces;
  auto inside = model->model;
  pieces.push_back({"embedding", {"model.embed_tokens"}, [inside](const Tensors& ids) {
                      auto own = inside;
                      return Tensors{own->embed_tokens->forward(ids[0])};
                    }});
  add_blocks<models::LlamaBlockImpl>(pieces, inside->layers, "model.layers");
  const bool is_tied = model->options().tied;
  auto head = model->lm_head;
  pieces.push_back({"head",
                    {"model.norm", is_tied ? "model.embed_tokens" : "lm_head"},
                    [inside, head, is_tied](const Tensors& x) {
                      auto own = inside;
                      const at::Tensor normal = own->norm->forward(x[0]);
                      return Tensors{
                          at::linear(normal, is_tied ? own->embed_tokens->weight : head->weight)};
                    }});
  return pieces;
}

std::vector<ModelPiece> resnet_pieces(const models::ResNet18& model) {
  std::vector<ModelPiece> pieces;
  pieces.push_back({"stem", {"conv1", "bn1"}, [net = model.ptr()](const Tensors& images) {
                      const at::Tensor x =
                          at::relu(net->bn1->forward(net->conv1->forward(images[0])));
                      return Tensors{net->options().cifar_stem ? x : at::max_pool2d(x, 3, 2, 1)};
                    }});
  const std::pair<const char*, torch::nn::Sequential> layers[] = {{"layer1", model->layer1},
                                                                  {"layer2", model->layer2},
                                                                  {"layer3", model->layer3},
                                                                  {"layer4", model->layer4}};
  for (const auto& [layer, blocks] : layers)
    for (std::size_t i = 0; i < blocks->size(); ++i)
      pieces.push_back(piece_of(formatted("{}.{}", layer, i),
                                models::ResNetBlock(blocks->ptr<models::ResNetBlockImpl>(i))));
  pieces.push_back({"head", {"fc"}, [net = model.ptr()](const Tensors& x) {
                      return Tensors{net->fc->forward(x[0].mean({2, 3}))};
                    }});
  return pieces;
}

std::vector<ModelPiece> mlp_pieces(const models::Mlp& model) {
  std::vector<ModelPiece> pieces;
  for (std::size_t i = 0; i < model->layers->size(); ++i) {
    const std::string name = formatted("layers.{}", i);
    auto layer = model->layers->ptr<torch::nn::LinearImpl>(i);
    pieces.push_back({name, {name}, [layer, is_first = i == 0](const Tensors& x) {
                        return Tensors{layer->forward(is_first ? x[0].flatten(1) : at::relu(x[0]))};
                      }});
  }
  return pieces;
}

// Shards whole pairs only: an odd last layer is replicated.
TensorPlan mlp_tensor_plan(const models::Mlp& model) {
  TensorPlan plan;
  for (std::size_t i = 0; i + 1 < model->layers->size(); i += 2) {
    plan.emplace_back(formatted("layers.{}", i), Colwise());
    plan.emplace_back(formatted("layers.{}", i + 1), Rowwise());
  }
  return plan;
}

at::Tensor class_loss(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs[0], targets[0]);
}

}  // namespace

ModelPiece piece_of(const std::string& name, const torch::nn::Sequential& module) {
  return {name, {name}, split(module, {}).front().forward};
}

ParallelPlan parallel_plan(const torch::nn::Sequential& model) {
  std::vector<std::string> points;
  for (const auto& child : model->named_children()) points.push_back(child.key());
  ParallelPlan plan;
  if (points.empty()) return plan;
  points.erase(points.begin());
  for (Stage& child : split(model, points))
    plan.pieces.push_back({child.name, {child.name}, std::move(child.forward)});
  return plan;
}

ParallelPlan parallel_plan(const models::Gpt& model) {
  return {.tensor = gpt_tensor_plan(model->options()),
          .blocks = {"transformer.h.*"},
          .pieces = gpt_pieces(model),
          .heads = model->options().heads,
          .loss = token_loss};
}

ParallelPlan parallel_plan(const models::Moe& model) {
  return {.tensor = moe_tensor_plan(model->options()),
          .blocks = {"transformer.h.*"},
          .pieces = moe_pieces(model),
          .heads = model->options().gpt.heads,
          .experts = model->options().mixture.experts,
          .loss = token_loss};
}

ParallelPlan parallel_plan(const models::Llama& model) {
  return {.tensor = llama_tensor_plan(model->options()),
          .blocks = {"model.layers.*"},
          .pieces = llama_pieces(model),
          .heads = model->options().key_value_heads,
          .loss = token_loss};
}

ParallelPlan parallel_plan(const models::ResNet18& model) {
  return {.blocks = {"layer*.*"}, .pieces = resnet_pieces(model), .loss = class_loss};
}

ParallelPlan parallel_plan(const models::Mlp& model) {
  return {.tensor = mlp_tensor_plan(model), .blocks = {"layers.*"}, .pieces = mlp_pieces(model)};
}

ParallelPlan parallel_plan(const models::ConvNet& /*model*/) {
  return {.loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::nll_loss(outputs[0], targets[0]);
  }};
}

TensorPlan gpt_tensor_plan(const models::GptOptions& options) {
  return {{"transformer.wte", Vocabulary()},
          {"transformer.h.*.attn.c_attn", Colwise(3).heads(options.heads)},
          {"transformer.h.*.attn.c_proj", Rowwise()},
          {"transformer.h.*.mlp.c_fc", Colwise()},
          {"transformer.h.*.mlp.c_proj", Rowwise()}};
}

TensorPlan moe_tensor_plan(const models::MoeOptions& options) {
  TensorPlan plan = gpt_tensor_plan(options.gpt);
  const bool is_dense = options.every > 1;  // in some blocks
  if (!is_dense)
    std::erase_if(plan,
                  [](const auto& one) { return one.first.find(".mlp.") != std::string::npos; });
  return plan;
}

TensorPlan llama_tensor_plan(const models::LlamaOptions& options) {
  const std::string layer = "model.layers.*.";
  const auto keys = Colwise().heads(options.key_value_heads);
  TensorPlan plan = {{"model.embed_tokens", Vocabulary()},
                     {layer + "self_attn.q_proj", Colwise().heads(options.heads)},
                     {layer + "self_attn.k_proj", keys},
                     {layer + "self_attn.v_proj", keys},
                     {layer + "self_attn.o_proj", Rowwise()},
                     {layer + "mlp.gate_proj", Colwise()},
                     {layer + "mlp.up_proj", Colwise()},
                     {layer + "mlp.down_proj", Rowwise()}};
  if (!options.tied) plan.push_back({"lm_head", Vocabulary()});
  return plan;
}

at::Tensor token_loss(const Tensors& outputs, const Tensors& targets) {
  at::Tensor flat = outputs[0].view({-1, outputs[0].size(-1)});
  // A mean over many tokens in 16 bits would lose most of them to rounding.
  flat = flat.to(c10::promoteTypes(flat.scalar_type(), at::kFloat));
  at::Tensor loss = at::cross_entropy_loss(flat, targets[0].reshape(-1), /*weight=*/{},
                                           at::Reduction::Mean, /*ignore_index=*/-1);
  for (std::size_t i = 1; i < outputs.size(); ++i) loss = loss + outputs[i];
  return loss;
}

}  // namespace lockstep
