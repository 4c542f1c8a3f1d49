#include <lockstep/parallel/pipeline/language_models.h>

#include "base/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include <cstdint>

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

// Of a Gpt, and of a Moe.
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

}  // namespace

std::vector<ModelPiece> pieces_of(const models::Gpt& model) {
  std::vector<ModelPiece> pieces{embedding_of(model->transformer)};
  auto transformer = model->transformer;
  add_blocks<models::GptBlockImpl>(pieces, transformer->h, "transformer.h");
  pieces.push_back({"head", head_modules, [transformer](const Tensors& x) {
                      return Tensors{logits_of(transformer, x[0])};
                    }});
  return pieces;
}

// The mixtures' losses go from block to block beside the activations.
std::vector<ModelPiece> pieces_of(const models::Moe& model) {
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

std::vector<ModelPiece> pieces_of(const models::Llama& model) {
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

std::vector<std::string> even_points(const std::vector<ModelPiece>& pieces, int stages) {
  const auto blocks = static_cast<std::int64_t>(pieces.size()) - 2;
  check(stages >= 1 && blocks >= stages, "even_points: expected {} blocks or more, found {}",
        stages, blocks);
  std::vector<std::string> points;
  for (std::int64_t stage = 1; stage < stages; ++stage)
    points.push_back(pieces[static_cast<std::size_t>(1 + blocks * stage / stages)].name);
  return points;
}

at::Tensor token_loss(const Tensors& outputs, const Tensors& targets) {
  at::Tensor flat = outputs[0].view({-1, outputs[0].size(-1)});
  // A mean over many tokens in 16 bits would round most of them away.
  flat = flat.to(c10::promoteTypes(flat.scalar_type(), at::kFloat));
  at::Tensor loss = at::cross_entropy_loss(flat, targets[0].reshape(-1), /*weight=*/{},
                                           at::Reduction::Mean, /*ignore_index=*/-1);
  for (std::size_t i = 1; i < outputs.size(); ++i) loss = loss + outputs[i];
  return loss;
}

}  // namespace lockstep
