// Modules of LibTorch and of Lockstep that are created inside a DeferredInit equal modules that are
// created normally.
#include "dispatch/lazy_storage.h"

#include <lockstep/dispatch/deferred_init.h>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

namespace lockstep::dispatch {
namespace {

namespace nn = torch::nn;

struct Kind {
  std::string name;
  std::function<std::shared_ptr<nn::Module>()> make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Two modules that share a weight, and a buffer that is a view of the weight.
struct TiedImpl : nn::Module {
  TiedImpl() {
    embedding =
        register_module("embedding", nn::Embedding(nn::EmbeddingOptions(30, 16).padding_idx(2)));
    head = register_module("head", nn::Linear(nn::LinearOptions(16, 30).bias(false)));
    head->weight = embedding->weight;
    head->register_parameter("tied", embedding->weight);
    scale = register_parameter("scale", torch::randn({20, 30}) * 0.02);
    register_parameter("frozen", torch::rand({30, 3}), /*requires_grad=*/false);
    register_buffer("mask", torch::tril(torch::ones({32, 32})).view({1, 1, 32, 32}));
    register_buffer("first", embedding->weight.detach()[1]);
    to(torch::kDouble);
  }
  nn::Embedding embedding{nullptr};
  nn::Linear head{nullptr};
  at::Tensor scale;
};

template <typename Holder, typename... Arguments>
Kind kind(std::string name, Arguments... arguments) {
  return {std::move(name), [=] { return Holder(arguments...).ptr(); }};
}

nn::Sequential sequence() {
  return nn::Sequential(nn::Linear(30, 20), nn::BatchNorm1d(20), nn::Linear(20, 10));
}

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

class DeferredModule : public testing::TestWithParam<Kind> {};

Tensors tensors_of(const nn::Module& module) {
  Tensors all = module.named_parameters();
  all.update(module.named_buffers());
  return all;
}

// Checks that all tensors of `found` equal those of `expected`, materializing them in reverse
// order.
void expect_equal(const Tensors& expected, const Tensors& found, int& deferred) {
  ASSERT_EQ(expected.keys(), found.keys());
  for (const auto& item : found)
    EXPECT_EQ(is_deferred(item.value()), !has_memory(item.value())) << item.key();
  for (std::size_t i = expected.size(); i-- > 0;) {
    const at::Tensor &ordinary = expected[i].value(), &tensor = found[i].value();
    if (is_deferred(tensor)) ++deferred;
    EXPECT_EQ(ordinary.requires_grad(), tensor.requires_grad()) << expected[i].key();
    EXPECT_EQ(ordinary.strides(), tensor.strides()) << expected[i].key();
    EXPECT_EQ(ordinary.dtype(), tensor.dtype()) << expected[i].key();
    EXPECT_TRUE(tensor.is_leaf()) << expected[i].key();
    EXPECT_TRUE(at::equal(ordinary, tensor)) << expected[i].key();
  }
}

TEST_P(DeferredModule, HasTheValuesAndLeavesTheGeneratorOfTheOrdinaryOne) {
  auto state = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  torch::manual_seed(11);
  auto ordinary = GetParam().make();
  at::Tensor after = state();
  for (std::int64_t smallest : {1, 1024}) {
    torch::manual_seed(11);
    std::shared_ptr<nn::Module> deferred;
    {
      DeferredInit deferred_init(smallest);
      deferred = GetParam().make();
    }
    EXPECT_TRUE(at::equal(after, state()));
    (void)at::rand({100});
    int count = 0;
    expect_equal(tensors_of(*ordinary), tensors_of(*deferred), count);
    EXPECT_GE(count, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DeferredModule,
    testing::Values(
        kind<nn::Linear>("Linear", nn::LinearOptions(30, 20)),
        kind<nn::Bilinear>("Bilinear", nn::BilinearOptions(8, 9, 10)),
        kind<nn::Embedding>("Embedding", nn::EmbeddingOptions(30, 20).padding_idx(3)),
        kind<nn::LayerNorm>("LayerNorm", nn::LayerNormOptions({300})),
        kind<nn::GroupNorm>("GroupNorm", nn::GroupNormOptions(2, 300)),
        kind<nn::BatchNorm2d>("BatchNorm", nn::BatchNormOptions(400)),
        kind<nn::Conv2d>("Conv", nn::Conv2dOptions(4, 8, 3)),
        kind<nn::ConvTranspose2d>("ConvTranspose", nn::ConvTranspose2dOptions(4, 8, 3)),
        kind<nn::LSTM>("Lstm", nn::LSTMOptions(16, 24).num_layers(2).bidirectional(true)),
        kind<nn::GRU>("Gru", nn::GRUOptions(16, 24)),
        kind<nn::MultiheadAttention>("MultiheadAttention", nn::MultiheadAttentionOptions(32, 4)),
        kind<nn::TransformerEncoderLayer>("TransformerEncoderLayer",
                                          nn::TransformerEncoderLayerOptions(32, 4)),
        // clones its first layer and then reinitializes the clones
        kind<nn::Transformer>("Transformer", nn::TransformerOptions(32, 4, 2, 2)),
        kind<nn::AdaptiveLogSoftmaxWithLoss>(
            "AdaptiveLogSoftmax", nn::AdaptiveLogSoftmaxWithLossOptions(32, 100, {10, 40})),
        Kind{"Sequential", [] { return std::shared_ptr<nn::Module>(sequence().ptr()); }},
        Kind{"Tied", [] { return std::make_shared<TiedImpl>(); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::dispatch
