#include <lockstep/models/gpt.h>

#include "models/gpt_options.h"

#include <lockstep/base/error.h>

#include <utility>

namespace lockstep::models {
GptTransformerImpl::GptTransformerImpl(const GptOptions& options)
    : wte(options.vocabulary, options.width),
      wpe(options.block, options.width),
      drop(options.dropout),
      ln_f(options.width, options.bias) {
  register_module("wte", wte);
  register_module("wpe", wpe);
  register_module("drop", drop);
  register_module("h", h);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) h->push_back(GptBlock(options));
  register_module("ln_f", ln_f);
}

at::Tensor GptTransformerImpl::forward(const at::Tensor& ids) {
  const at::Tensor positions = at::arange(ids.size(1), ids.options().dtype(at::kLong));
  at::Tensor x = drop->forward(wte->forward(ids) + wpe->forward(positions));
  for (const auto& block : *h) x = block->as<GptBlockImpl>()->forward(x);
  return ln_f->forward(x);
}

GptImpl::GptImpl(GptOptions options) : transformer(checked(options, "Gpt")), options_(options) {
  register_module("transformer", transformer);
  draw_weights(*this, options_.layers);
}

at::Tensor GptImpl::forward(const at::Tensor& ids) {
  if (ids.dim() != 2 || ids.size(1) > options_.block) {
    throw InvalidArgument(c10::str("Gpt::forward: expected ids of [rows, at most ", options_.block,
                                   " tokens (the block)], found ", ids.sizes()));
  }
  return head(transformer->forward(ids));
}

at::Tensor GptImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  at::Tensor logits = forward(ids).view({-1, options_.vocabulary});
  // Computes the loss in fp32 at least: a mean over many tokens in 16 bits would lose most of them
  // to rounding.
  logits = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
  return at::cross_entropy_loss(logits, targets.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-1);
}

at::Tensor GptImpl::generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options) {
  return generate_tokens(*this, std::move(ids), count, options_.block, options,
                         [this](const at::Tensor& seen) {
                           const at::Tensor x = transformer->forward(seen);
                           return head(x.select(1, x.size(1) - 1));
                         });
}

std::vector<Alias> GptImpl::aliases() const {
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

at::Tensor GptImpl::head(const at::Tensor& x) const {
  return at::linear(x, transformer->wte->weight);
}

}  // namespace lockstep::models
