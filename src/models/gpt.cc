#include <lockstep/models/gpt.h>

#include <lockstep/base/error.h>

#include <torch/nn/init.h>

#include <cmath>
#include <limits>

namespace lockstep::models {
namespace {

GptOptions checked(GptOptions options) {
  auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) throw InvalidArgument(c10::str("Gpt: expected ", name, " >= 1, found ", value));
  };
  positive("layers", options.layers);
  positive("heads", options.heads);
  positive("width", options.width);
  positive("block", options.block);
  positive("vocabulary", options.vocabulary);
  if (options.width % options.heads != 0) {
    throw InvalidArgument(c10::str("Gpt: expected a width that ", options.heads,
                                   " heads divide, found ", options.width));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw InvalidArgument(c10::str("Gpt: expected dropout in [0, 1), found ", options.dropout));
  }
  return options;
}

void initialise(torch::nn::Module& module, std::int64_t layers) {
  constexpr double deviation = 0.02;
  const double residual_deviation = deviation / std::sqrt(2.0 * static_cast<double>(layers));
  auto ends_with = [](const std::string& name, std::string_view end) {
    return name.ends_with(end);
  };
  for (auto& item : module.named_parameters()) {
    if (ends_with(item.key(), ".bias")) {
      torch::nn::init::zeros_(item.value());
    } else if (item.value().dim() == 2) {
      torch::nn::init::normal_(
          item.value(), 0.0,
          ends_with(item.key(), "c_proj.weight") ? residual_deviation : deviation);
    }
  }
}

// Everything but the k largest logits of a row becomes impossible.
at::Tensor only_largest(const at::Tensor& logits, std::int64_t k) {
  const at::Tensor largest = std::get<0>(logits.topk(std::min(k, logits.size(-1)), -1));
  return logits.masked_fill(logits < largest.narrow(-1, largest.size(-1) - 1, 1),
                            -std::numeric_limits<double>::infinity());
}

}  // namespace

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

GptImpl::GptImpl(GptOptions options) : transformer(checked(options)), options_(options) {
  register_module("transformer", transformer);
  initialise(*this, options_.layers);
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
  // A mean over many tokens in 16 bits would round most of them away.
  logits = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
  return at::cross_entropy_loss(logits, targets.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-1);
}

at::Tensor GptImpl::generate(at::Tensor ids, std::int64_t count, const GenerateOptions& options) {
  if (ids.dim() != 2 || ids.size(1) < 1) {
    throw InvalidArgument(
        c10::str("Gpt::generate: expected ids of [rows, one token or more], found ", ids.sizes()));
  }
  if (!(options.temperature >= 0) || options.top_k < 0) {
    throw InvalidArgument(c10::str("Gpt::generate: expected temperature and top_k >= 0, found ",
                                   options.temperature, " and ", options.top_k));
  }
  c10::NoGradGuard no_grad;
  const bool was_training = is_training();
  eval();
  try {
    for (std::int64_t i = 0; i < count; ++i)
      ids = at::cat({ids, next_token(ids, options)}, /*dim=*/1);
  } catch (...) {
    train(was_training);
    throw;
  }
  train(was_training);
  return ids;
}

std::vector<Alias> GptImpl::aliases() const {
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

at::Tensor GptImpl::head(const at::Tensor& x) const {
  return at::linear(x, transformer->wte->weight);
}

at::Tensor GptImpl::next_token(const at::Tensor& ids, const GenerateOptions& options) {
  const std::int64_t seen = std::min(ids.size(1), options_.block);
  const at::Tensor x = transformer->forward(ids.narrow(1, ids.size(1) - seen, seen));
  at::Tensor logits = head(x.select(1, seen - 1));
  if (options.temperature == 0) return logits.argmax(-1, /*keepdim=*/true);
  logits = logits / options.temperature;
  if (options.top_k > 0) logits = only_largest(logits, options.top_k);
  return at::multinomial(at::softmax(logits, -1), 1, /*replacement=*/false, options.generator);
}

}  // namespace lockstep::models
