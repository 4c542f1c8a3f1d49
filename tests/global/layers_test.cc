// Models that are not the library's: a block as in Llama, torch::nn::Transformer.
#include "support/torch/engine_test.h"
#include "tests_of_global.h"

#include <torch/torch.h>

#include <functional>
#include <map>
#include <mutex>

namespace lockstep {
namespace {

using test::mesh_of_ranks;

// RMSNorm, rotary positions, grouped queries, SwiGLU.
struct LlamaBlockImpl : torch::nn::Module {
  LlamaBlockImpl(int width, int heads, int groups, int hidden)
      : heads(heads), groups(groups), head_width(width / heads) {
    auto linear = [&](const char* name, int from, int to) {
      return register_module(name,
                             torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
    };
    wq = linear("wq", width, width);
    wk = linear("wk", width, groups * head_width);
    wv = linear("wv", width, groups * head_width);
    wo = linear("wo", width, width);
    w1 = linear("w1", width, hidden);
    w2 = linear("w2", hidden, width);
    w3 = linear("w3", width, hidden);
    norm1 = register_parameter("norm1", torch::ones(width));
    norm2 = register_parameter("norm2", torch::ones(width));
  }

  static at::Tensor normalized(const at::Tensor& x, const at::Tensor& weight) {
    return x * (x.pow(2).mean(-1, true) + 1e-5).rsqrt() * weight;
  }

  static at::Tensor rotated(const at::Tensor& x) {  // [rows, heads, tokens, width]
    std::int64_t tokens = x.size(2), half = x.size(3) / 2;
    at::Tensor angles = at::arange(tokens, at::kDouble).unsqueeze(1) *
                        at::pow(100.0, -at::arange(half, at::kDouble) / half);
    at::Tensor cos = angles.cos(), sin = angles.sin();
    auto parts = x.chunk(2, -1);
    return at::cat({parts[0] * cos - parts[1] * sin, parts[0] * sin + parts[1] * cos}, -1);
  }

  at::Tensor forward(const at::Tensor& x) {
    std::int64_t rows = x.size(0), tokens = x.size(1), width = x.size(2);
    auto per_head = [&](const at::Tensor& y, std::int64_t count) {
      return y.view({rows, tokens, count, head_width}).transpose(1, 2);
    };
    at::Tensor y = normalized(x, norm1);
    at::Tensor q = rotated(per_head(wq(y), heads)), k = rotated(per_head(wk(y), groups));
    at::Tensor v = per_head(wv(y), groups);
    auto repeated = [&](const at::Tensor& z) { return z.repeat_interleave(heads / groups, 1); };
    at::Tensor mixed = at::scaled_dot_product_attention(q, repeated(k), repeated(v), {}, 0.0, true);
    at::Tensor h = x + wo(mixed.transpose(1, 2).reshape({rows, tokens, width}));
    at::Tensor z = normalized(h, norm2);
    return h + w2(at::silu(w1(z)) * w3(z));
  }

  int heads, groups, head_width;
  torch::nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
  torch::nn::Linear w1{nullptr}, w2{nullptr}, w3{nullptr};
  at::Tensor norm1, norm2;
};
TORCH_MODULE(LlamaBlock);

using Layouts = std::vector<std::pair<std::string, Placement>>;

// Gradients of a module's parameters, and its loss, on plain tensors and on one axis of ranks.
template <class Module>
void compare_gradients(const Group& world, const std::function<Module()>& make,
                       const std::function<at::Tensor(Module&, const at::Tensor&)>& run,
                       const at::Tensor& data, Placement of_data, const Layouts& layouts) {
  Mesh mesh(world, {{"tp", -1}});
  set_global_options(mesh, {.replicate_plain = true});
  Module plain{nullptr}, global{nullptr};
  {
    static std::mutex one_at_a_time;  // ranks are threads, and share the default generator
    std::lock_guard lock(one_at_a_time);
    for (Module* model : {&plain, &global}) {
      torch::manual_seed(2);
      *model = make();
      (*model)->to(at::kDouble);
    }
  }
  for (auto& item : global->named_parameters()) {
    Placement placement;
    for (const auto& [end, one] : layouts)
      if (item.key().ends_with(end)) placement = one;
    distribute_(item.value(), mesh, {placement});
  }
  at::Tensor expected = run(plain, data), found = run(global, distribute(data, mesh, {of_data}));
  EXPECT_NEAR(full_tensor(found.detach()).item<double>(), expected.item<double>(), 1e-10);
  expected.backward();
  found.backward();
  auto plains = plain->named_parameters();
  for (const auto& item : global->named_parameters()) {
    const at::Tensor& gradient = plains[item.key()].grad();
    if (!gradient.defined()) continue;
    EXPECT_TRUE(full_tensor(item.value().grad()).allclose(gradient, 1e-9, 1e-11)) << item.key();
  }
}

class Layers : public test::EngineTest {};

TEST_P(Layers, ALlamaBlock) {
  std::function<LlamaBlock()> make = [] { return LlamaBlock(16, 8, 4, 24); };
  std::function<at::Tensor(LlamaBlock&, const at::Tensor&)> run_it =
      [](LlamaBlock& block, const at::Tensor& x) { return block->forward(x).pow(2).mean(); };
  Layouts columns_and_rows = {{"wq.weight", Shard(0)}, {"wk.weight", Shard(0)},
                              {"wv.weight", Shard(0)}, {"wo.weight", Shard(1)},
                              {"w1.weight", Shard(0)}, {"w3.weight", Shard(0)},
                              {"w2.weight", Shard(1)}};
  at::Tensor data = at::arange(3 * 5 * 16, at::kDouble).view({3, 5, 16}).sin();
  run([&](Group world) {
    compare_gradients(world, make, run_it, data, Replicate(), {});
    compare_gradients(world, make, run_it, data, Shard(0), {});
    compare_gradients(world, make, run_it, data, Replicate(), columns_and_rows);
    compare_gradients(world, make, run_it, data, Shard(1), columns_and_rows);
  });
}

TEST_P(Layers, ATransformerOfTorch) {
  using torch::nn::Transformer;
  std::function<Transformer()> make = [] {
    return Transformer(torch::nn::TransformerOptions(8, 4, 1, 1).dim_feedforward(12).dropout(0.0));
  };
  std::function<at::Tensor(Transformer&, const at::Tensor&)> run_it = [](Transformer& model,
                                                                         const at::Tensor& x) {
    return model->forward(x, x * 0.5).pow(2).mean();
  };
  at::Tensor data = at::arange(5 * 4 * 8, at::kDouble).view({5, 4, 8}).sin();
  Layouts rows = {{"linear1.weight", Shard(0)},  {"linear1.bias", Shard(0)},
                  {"linear2.weight", Shard(1)},  {"in_proj_weight", Shard(0, 3)},
                  {"in_proj_bias", Shard(0, 3)}, {"out_proj.weight", Shard(1)}};
  run([&](Group world) {
    compare_gradients(world, make, run_it, data, Replicate(), {});
    compare_gradients(world, make, run_it, data, Shard(1), {});
    compare_gradients(world, make, run_it, data, Replicate(), rows);
  });
}

TEST_P(Layers, AConvolutionalNet) {
  using torch::nn::Sequential;
  std::function<Sequential()> make = [] {
    return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)),
                      torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::BatchNorm2d(4),
                      torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3)), torch::nn::Flatten(),
                      torch::nn::Linear(16, 3));
  };
  std::function<at::Tensor(Sequential&, const at::Tensor&)> run_it =
      [](Sequential& model, const at::Tensor& x) { return model->forward(x).pow(2).mean(); };
  at::Tensor data = at::arange(4 * 2 * 8 * 8, at::kDouble).view({4, 2, 8, 8}).sin();
  run([&](Group world) {
    for (Placement of_data : {Placement(), Placement(Shard(0))})
      compare_gradients(world, make, run_it, data, of_data, {});
    Layouts channels = {{"0.weight", Shard(0)}, {"0.bias", Shard(0)}, {"4.weight", Shard(1)}};
    compare_gradients(world, make, run_it, data, Replicate(), channels);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Layers,
                         testing::Values(std::tuple(test::Engine::local, 1),
                                         std::tuple(test::Engine::local, 2),
                                         std::tuple(test::Engine::local, 3),
                                         std::tuple(test::Engine::local, 4)),
                         test::engine_test_name);

}  // namespace
}  // namespace lockstep
