#include <lockstep/models/llama.h>

#include <lockstep/base/error.h>

#include <torch/nn/init.h>

#include <utility>

namespace lockstep::models {
namespace {

LlamaOptions checked(LlamaOptions options) {
  auto positive = [](const char* name, auto value) {
    if (!(value > 0))
      throw InvalidArgument(c10::str("Llama: expected ", name, " above 0, found ", value));
  };
  positive("layers", options.layers);
  positive("heads", options.heads);
  positive("key_value_heads", options.key_value_heads);
  positive("width", options.width);
  positive("hidden", options.hidden);
  positive("block", options.block);
  positive("vocabulary", options.vocabulary);
  positive("rotary_base", options.rotary_base);
  positive("rotary_scaling.factor", options.rotary_scaling.factor);
  if (options.heads % options.key_value_heads != 0)
    throw InvalidArgument(c10::str("Llama: expected heads divisible by key_value_heads, ",
                                   options.key_value_heads, ", found ", options.heads));
  if (options.head_width == 0) {
    if (options.width % options.heads != 0)
      throw InvalidArgument(c10::str("Llama: expected a width divisible by heads, ", options.heads,
                                     ", found ", options.width));
    options.head_width = options.width / options.heads;
  }
  if (options.head_width < 2 || options.head_width % 2 != 0)
    throw InvalidArgument(
        c10::str("Llama: expected an even head_width, whose halves are rotated, found ",
                 options.head_width));
  return options;
}

void initialise(torch::nn::Module& module) {
  for (auto& item : module.named_parameters()) {
    if (item.key().ends_with(".bias"))
      torch::nn::init::zeros_(item.value());
    else if (item.value().dim() == 2)
      torch::nn::init::normal_(item.value(), 0.0, 0.02);
  }
}

}  // namespace

LlamaModelImpl::LlamaModelImpl(const LlamaOptions& options)
    : embed_tokens(options.vocabulary, options.width), norm(options.width, options.norm_epsilon) {
  register_module("embed_tokens", embed_tokens);
  register_module("layers", layers);
  for (std::int64_t layer = 0; layer < options.layers; ++layer)
    layers->push_back(LlamaBlock(options));
  register_module("norm", norm);
}

at::Tensor LlamaModelImpl::forward(const at::Tensor& ids) {
  at::Tensor x = embed_tokens->forward(ids);
  for (const auto& layer : *layers) x = layer->as<LlamaBlockImpl>()->forward(x);
  return norm->forward(x);
}

LlamaImpl::LlamaImpl(LlamaOptions options) : model(options = checked(options)), options_(options) {
  register_module("model", model);
  if (!options_.tied)
    lm_head = register_module(
        "lm_head", torch::nn::Linear(
                       torch::nn::LinearOptions(options_.width, options_.vocabulary).bias(false)));
  initialise(*this);
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids) {
  if (ids.dim() != 2 || ids.size(1) > options_.block)
    throw InvalidArgument(c10::str("Llama::forward: expected ids of [rows, at most ",
                                   options_.block, " tokens (the block)], found ", ids.sizes()));
  return head(model->forward(ids));
}

at::Tensor LlamaImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  at::Tensor logits = forward(ids).view({-1, options_.vocabulary});
  // Computes the loss in fp32 at least: a mean over many tokens in 16 bits would lose most of them
  // to rounding.
  logits = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
  return at::cross_entropy_loss(logits, targets.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-1);
}

at::Tensor LlamaImpl::generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options) {
  return generate_tokens(*this, std::move(ids), count, options_.block, options,
                         [this](const at::Tensor& seen) {
                           const at::Tensor x = model->forward(seen);
                           return head(x.select(1, x.size(1) - 1));
                         });
}

std::vector<Alias> LlamaImpl::aliases() const {
  if (!options_.tied) return {};
  return {{"lm_head.weight", "model.embed_tokens.weight"}};
}

at::Tensor LlamaImpl::head(const at::Tensor& x) const {
  return at::linear(x, options_.tied ? model->embed_tokens->weight : lm_head->weight);
}

}  // namespace lockstep::models
