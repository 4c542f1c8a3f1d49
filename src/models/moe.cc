#include <lockstep/models/moe.h>

#include "models/language_models.h"

#include <lockstep/base/error.h>

#include <utility>

namespace lockstep::models {
namespace {

MoeOptions checked(MoeOptions options) {
  options.gpt = checked(options.gpt, "Moe");
  if (options.every < 1 || options.every > options.gpt.layers)
    throw InvalidArgument(c10::str("Moe: expected a mixture in every block, or in each of up to ",
                                   options.gpt.layers, " blocks, found every = ", options.every));
  options.mixture.hidden_size = options.gpt.hidden_size;
  options.mixture.ffn_size = 4 * options.gpt.hidden_size;
  return options;
}

bool has_mixture(const MoeOptions& options, std::int64_t layer) {
  return (layer + 1) % options.every == 0;
}

}  // namespace

MoeBlockImpl::MoeBlockImpl(const MoeOptions& options)
    : ln_1(options.gpt.hidden_size, options.gpt.bias),
      attn(options.gpt),
      ln_2(options.gpt.hidden_size, options.gpt.bias),
      moe(options.mixture),
      dropout(options.gpt.dropout) {
  register_module("ln_1", ln_1);
  register_module("attn", attn);
  register_module("ln_2", ln_2);
  register_module("moe", moe);
  register_module("dropout", dropout);
}

MixtureImpl::Result MoeBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + attn->forward(ln_1->forward(x));
  MixtureImpl::Result result = moe->forward(ln_2->forward(y));
  return {y + dropout->forward(result.output), result.loss};
}

MoeTransformerImpl::MoeTransformerImpl(const MoeOptions& options)
    : wte(options.gpt.vocabulary, options.gpt.hidden_size),
      wpe(options.gpt.context_length, options.gpt.hidden_size),
      drop(options.gpt.dropout),
      ln_f(options.gpt.hidden_size, options.gpt.bias) {
  register_module("wte", wte);
  register_module("wpe", wpe);
  register_module("drop", drop);
  register_module("h", h);
  for (std::int64_t layer = 0; layer < options.gpt.layers; ++layer) {
    if (has_mixture(options, layer)) {
      h->push_back(MoeBlock(options));
    } else {
      h->push_back(GptBlock(options.gpt));
    }
  }
  register_module("ln_f", ln_f);
}

MixtureImpl::Result MoeTransformerImpl::forward(const at::Tensor& ids) {
  const at::Tensor positions = at::arange(ids.size(1), ids.options().dtype(at::kLong));
  at::Tensor x = drop->forward(wte->forward(ids) + wpe->forward(positions));
  at::Tensor loss;
  for (const auto& block : *h) {
    if (auto* dense = block->as<GptBlockImpl>()) {
      x = dense->forward(x);
      continue;
    }
    MixtureImpl::Result result = block->as<MoeBlockImpl>()->forward(x);
    x = std::move(result.output);
    loss = loss.defined() ? loss + result.loss : result.loss;
  }
  return {ln_f->forward(x), loss};
}

MoeImpl::MoeImpl(MoeOptions options) : transformer(checked(options)), options_(checked(options)) {
  register_module("transformer", transformer);
  draw_weights(*this, options_.gpt.layers);
}

void MoeImpl::check_ids(const at::Tensor& ids) const {
  models::check_ids(ids, options_.gpt.context_length, "Moe::forward");
}

at::Tensor MoeImpl::forward(const at::Tensor& ids) {
  check_ids(ids);
  return head(transformer->forward(ids).output);
}

at::Tensor MoeImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  check_ids(ids);
  const MixtureImpl::Result result = transformer->forward(ids);
  const at::Tensor loss = token_loss(head(result.output), targets);
  return is_training() ? loss + result.loss : loss;
}

at::Tensor MoeImpl::generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options) {
  return generate_tokens(*this, std::move(ids), count, options_.gpt.context_length, options,
                         [this](const at::Tensor& seen) {
                           const at::Tensor x = transformer->forward(seen).output;
                           return head(x.select(1, x.size(1) - 1));
                         });
}

std::vector<Alias> MoeImpl::aliases() const {
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

std::vector<Mixture> MoeImpl::mixtures() const {
  std::vector<Mixture> all;
  for (const auto& block : *transformer->h)
    if (auto* with = block->as<MoeBlockImpl>()) all.push_back(with->moe);
  return all;
}

at::Tensor MoeImpl::head(const at::Tensor& x) const {
  return at::linear(x, transformer->wte->weight);
}

}  // namespace lockstep::models
