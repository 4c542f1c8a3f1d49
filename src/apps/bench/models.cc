#include "apps/bench/models.h"

#include <lockstep/base/error.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

namespace lockstep::apps {
namespace {

class Mlp : public BenchModel {
 public:
  Mlp(const MlpSizes& sizes, const std::function<void(torch::nn::Module&)>& made) : sizes_(sizes) {
    for (int i = 0; i < sizes.depth; ++i) {
      torch::nn::Linear layer(sizes.width, sizes.width);
      if (made) made(*layer);
      layers_->push_back(layer);
    }
    register_module("layers", layers_);
  }

  at::Tensor loss() override {
    at::TensorOptions options = layers_->ptr<torch::nn::LinearImpl>(0)->weight.options();
    at::Tensor x = torch::randn({sizes_.rows, sizes_.width}).to(options.dtype());
    at::Tensor target = torch::randn({sizes_.rows, sizes_.width}).to(options.dtype());
    for (int i = 0; i < sizes_.depth; ++i) {
      x = layers_->ptr<torch::nn::LinearImpl>(static_cast<std::size_t>(i))->forward(x);
      if (i + 1 < sizes_.depth) x = torch::relu(x);
    }
    return torch::mse_loss(x, target);
  }

  [[nodiscard]] std::vector<std::string> units() const override { return {"layers.*"}; }

 private:
  MlpSizes sizes_;
  torch::nn::ModuleList layers_;
};

class Block : public torch::nn::Module {
 public:
  Block(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        ln_1_(register_module("ln_1", norm(width))),
        ln_2_(register_module("ln_2", norm(width))),
        qkv_(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        proj_(register_module("proj", torch::nn::Linear(width, width))),
        fc_(register_module("fc", torch::nn::Linear(width, 4 * width))),
        out_(register_module("out", torch::nn::Linear(4 * width, width))) {}

  at::Tensor forward(at::Tensor x) {
    x = x + attention(ln_1_->forward(x));
    return x + out_->forward(torch::gelu(fc_->forward(ln_2_->forward(x))));
  }

 private:
  static torch::nn::LayerNorm norm(std::int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

  at::Tensor attention(const at::Tensor& x) {
    std::int64_t rows = x.size(0), tokens = x.size(1), width = x.size(2);
    std::vector<at::Tensor> parts = qkv_->forward(x).split(width, 2);
    for (at::Tensor& part : parts)
      part = part.view({rows, tokens, heads_, width / heads_}).transpose(1, 2);
    at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return proj_->forward(mixed.transpose(1, 2).reshape({rows, tokens, width}));
  }

  std::int64_t heads_;
  torch::nn::LayerNorm ln_1_, ln_2_;
  torch::nn::Linear qkv_, proj_, fc_, out_;
};

class Gpt : public BenchModel {
 public:
  explicit Gpt(const ModelSize& size) {
    tok_ = register_module("tok", torch::nn::Embedding(vocabulary, size.width));
    pos_ = register_module("pos", torch::nn::Embedding(block, size.width));
    for (int i = 0; i < size.depth; ++i)
      blocks_->push_back(std::make_shared<Block>(size.width, gpt_heads));
    register_module("blocks", blocks_);
    ln_f_ =
        register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})));
    // Python makes a head and then ties it: its random numbers are drawn here too.
    torch::nn::Linear head(torch::nn::LinearOptions(size.width, vocabulary).bias(false));
    for (at::Tensor& parameter : parameters())
      if (parameter.dim() == 2) torch::nn::init::normal_(parameter, 0.0, 0.02);
  }

  at::Tensor loss() override {
    at::Tensor ids = torch::randint(vocabulary, {rows, block + 1}, at::kLong);
    at::Tensor input = ids.narrow(1, 0, block).contiguous();
    at::Tensor target = ids.narrow(1, 1, block).contiguous();
    at::Tensor x = tok_->forward(input) + pos_->weight.narrow(0, 0, block);
    for (const auto& part : *blocks_) x = part->as<Block>()->forward(x);
    at::Tensor logits = at::linear(ln_f_->forward(x), tok_->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
  }

  [[nodiscard]] std::vector<std::string> units() const override { return {"blocks.*"}; }

 private:
  static constexpr std::int64_t block = 256, vocabulary = 65, rows = 8;
  torch::nn::Embedding tok_{nullptr}, pos_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm ln_f_{nullptr};
};

}  // namespace

std::shared_ptr<BenchModel> make_mlp(const MlpSizes& sizes,
                                     const std::function<void(torch::nn::Module&)>& made) {
  return std::make_shared<Mlp>(sizes, made);
}

std::shared_ptr<BenchModel> make_bench_model(const std::string& name, const ModelSize& size) {
  if (name == "mlp") return make_mlp({.width = size.width, .depth = size.depth});
  if (name == "gpt") return std::make_shared<Gpt>(size);
  throw BadInput("--model: expected mlp or gpt, found '" + name + "'");
}

}  // namespace lockstep::apps
