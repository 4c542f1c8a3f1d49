// Attention of global tensors where LibTorch has no fused kernel: values have other features than
// keys. Its formula makes a causal mask.
#include <lockstep/module/checkpoint_activations.h>

#include "tests_of_global.h"

#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep {
namespace {

constexpr int ranks = 2;

at::Tensor inputs() { return at::sin(at::arange(2 * 2 * 5 * 4, at::kDouble)).view({2, 2, 5, 4}); }

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    weight = register_parameter("weight", at::cos(at::arange(12, at::kDouble)).view({4, 3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::scaled_dot_product_attention(x, x, x.matmul(weight), {}, 0, /*is_causal=*/true);
  }
  at::Tensor weight;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    block = register_module("block", Block());
    scale = register_parameter("scale", at::full({3}, 0.7, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return block(x) * scale; }
  Block block = nullptr;
  at::Tensor scale;
};
TORCH_MODULE(Net);

std::map<std::string, at::Tensor> gradients_of(Net& net, const at::Tensor& x) {
  net->forward(x).square().sum().backward();
  std::map<std::string, at::Tensor> all;
  for (const auto& item : net->named_parameters())
    all[item.key()] = test::values_of(item.value().grad());
  return all;
}

TEST(Attention, IsRecomputedInBackward) {
  Net plain;
  const auto expected = gradients_of(plain, inputs());
  run_as_threads(ranks, [&](const Group& world) {
    const Mesh mesh = test::mesh_of_ranks(world, {ranks});
    for (const Placement& placement :
         Placements{Replicate(), Shard(0), Shard(1), Shard(2), Shard(3)}) {
      Net net;
      for (auto& parameter : net->parameters()) distribute_(parameter, mesh, {Replicate()});
      const auto checkpoints = checkpoint_activations(*net, {"block"});
      for (const auto& [name, gradient] :
           gradients_of(net, distribute(inputs(), mesh, {placement})))
        EXPECT_TRUE(gradient.allclose(expected.at(name), 1e-10, 1e-12)) << name;
    }
  });
}

TEST(Attention, RunsInInferenceMode) {
  const at::Tensor x = inputs(), values = x.narrow(3, 0, 3).contiguous();
  const at::Tensor expected = at::scaled_dot_product_attention(x, x, values, {}, 0, true);
  run_as_threads(ranks, [&](const Group& world) {
    const Mesh mesh = test::mesh_of_ranks(world, {ranks});
    const auto global = [&](const at::Tensor& whole) {
      return distribute(whole, mesh, {Shard(1)});
    };
    const at::Tensor query = global(x), key = global(x), value = global(values);
    const c10::InferenceMode inference;
    const at::Tensor found = at::scaled_dot_product_attention(query, key, value, {}, 0, true);
    EXPECT_TRUE(full_tensor(found).allclose(expected, 1e-10, 1e-12));
  });
}

TEST(Attention, AMaskBesideCausalIsRefusedAsOnOneProcess) {
  const at::Tensor x = inputs(), values = x.narrow(3, 0, 3), mask = at::ones({5, 5}, at::kBool);
  EXPECT_THROW((void)at::scaled_dot_product_attention(x, x, values, mask, 0, true), c10::Error);
  run_as_threads(ranks, [&](const Group& world) {
    const Mesh mesh = test::mesh_of_ranks(world, {ranks});
    const at::Tensor global = distribute(x, mesh, {Shard(1)});
    const at::Tensor global_mask = distribute(mask, mesh, {Replicate()});
    EXPECT_THROW((void)at::scaled_dot_product_attention(global, global, global.narrow(3, 0, 3),
                                                        global_mask, 0, true),
                 c10::Error);
  });
}

TEST(Attention, APlainMaskOfTheUserIsRefused) {
  run_as_threads(ranks, [&](const Group& world) {
    const Mesh mesh = test::mesh_of_ranks(world, {ranks});
    const at::Tensor x = distribute(inputs(), mesh, {Shard(1)});
    const at::Tensor mask = at::ones({5, 5}, at::kBool).tril();
    EXPECT_THROW((void)at::scaled_dot_product_attention(x, x, x.narrow(3, 0, 3), mask),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep
