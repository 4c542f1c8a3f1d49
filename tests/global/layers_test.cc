// Models outside of the library: a Llama block, torch::nn::Transformer.
#include <lockstep/models/conv_net.h>

#include "support/torch/backend_test.h"
#include "support/torch/drawn_numbers.h"
#include "tests_of_global.h"

#include <torch/torch.h>

#include <functional>
#include <map>

namespace lockstep {
namespace {

using test::mesh_of_ranks;

// A block with RMSNorm, rotary positions, grouped queries and SwiGLU.
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

// How a model is compared: the mesh, and the placements of its tensors. A tensor whose name matches
// no suffix in `layouts` gets random placements by `seed`, or is replicated if `seed` is 0.
struct Trial {
  std::vector<int> shape;
  Placements of_data;
  Layouts layouts = {};
  std::uint64_t seed = 0;
};

// Returns three trials per model: a sharded batch, then random placements of parameters and
// buffers, and then several axes.
std::vector<Trial> random_trials(int ranks) {
  std::vector<Trial> trials = {{{ranks}, {Shard(0)}}, {{ranks}, {Shard(0)}, {}, 11}};
  if (ranks == 4) trials.push_back({{2, 2}, {Shard(0), Replicate()}, {}, 12});
  if (ranks == 2) trials.push_back({{1, 2, 1}, {Replicate(), Shard(0), Replicate()}, {}, 13});
  return trials;
}

Placements placements_for(const std::string& name, const at::Tensor& tensor, const Trial& trial,
                          test::DrawnNumbers& drawn) {
  Placements all(trial.shape.size());
  for (const auto& [end, one] : trial.layouts)
    if (name.ends_with(end)) all.back() = one;
  if (trial.seed == 0) return all;
  for (Placement& one : all)
    if (int dim = drawn.below(static_cast<int>(tensor.dim()) + 1); dim < tensor.dim())
      one = Shard(dim);
  return all;
}

void expect_same_values(const at::Tensor& found, const at::Tensor& expected,
                        const std::string& what) {
  EXPECT_TRUE(test::values_of(found).allclose(expected, 1e-9, 1e-11))
      << what << ": " << describe(found);
}

// Adam's first step is the sign of the gradient. So Adam is only used for models without biases,
// because gradients of some biases are zero up to rounding.
using Optimizers = std::function<void(std::vector<at::Tensor>)>;

// Compares loss, gradients, buffers, and parameters after a step of `update`, between plain tensors
// and a mesh.
template <class Module>
void compare_a_step(const Group& world, const std::function<Module()>& make,
                    const std::function<at::Tensor(Module&, const at::Tensor&)>& run,
                    const at::Tensor& data, const Trial& trial, const Optimizers& update) {
  Mesh mesh = mesh_of_ranks(world, trial.shape);
  set_global_options(mesh, {.replicate_plain = true});
  Module plain = test::module_of_seed(2, make), global = test::module_of_seed(2, make);
  test::DrawnNumbers drawn(trial.seed);
  std::string what = "seed " + std::to_string(trial.seed);
  auto place = [&](const std::string& name, at::Tensor& tensor) {
    if (tensor.dim() == 0) return;  // number of batches
    distribute_(tensor, mesh, placements_for(name, tensor, trial, drawn));
    what += ", " + name + describe(placements(tensor));
  };
  for (auto& item : global->named_parameters()) place(item.key(), item.value());
  for (auto& item : global->named_buffers()) place(item.key(), item.value());
  at::Tensor expected = run(plain, data);
  at::Tensor found = run(global, distribute(data, mesh, trial.of_data));
  expect_same_values(found, expected.detach(), "loss, " + what);
  expected.backward();
  found.backward();
  auto plains = plain->named_parameters();
  for (const auto& item : global->named_parameters()) {
    const at::Tensor& gradient = plains[item.key()].grad();
    if (gradient.defined())
      expect_same_values(item.value().grad(), gradient, "gradient of " + item.key() + ", " + what);
  }
  update(plain->parameters());
  update(global->parameters());
  for (const auto& item : global->named_parameters())
    expect_same_values(item.value(), plains[item.key()].detach(), item.key() + ", " + what);
  auto buffers = plain->named_buffers();
  for (const auto& item : global->named_buffers())
    expect_same_values(item.value(), buffers[item.key()], item.key() + ", " + what);
  plain->eval();
  global->eval();
  at::NoGradGuard no_grad;
  expect_same_values(run(global, distribute(data, mesh, trial.of_data)), run(plain, data),
                     "evaluation, " + what);
}

// Makes one step of any optimizer.
template <class Optimizer, class Options>
Optimizers one_step_of(Options options) {
  return [=](std::vector<at::Tensor> parameters) {
    std::erase_if(parameters, [](const at::Tensor& one) { return !one.grad().defined(); });
    torch::nn::utils::clip_grad_norm_(parameters, 0.5);
    Optimizer(parameters, options).step();
  };
}
const Optimizers adamw = one_step_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
const Optimizers adam = one_step_of<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
const Optimizers sgd = one_step_of<torch::optim::SGD>(
    torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));

class Layers : public test::BackendTest {};

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
    for (const Trial& trial : random_trials(world.size()))
      compare_a_step(world, make, run_it, data, trial, adam);
    for (Placement of_data : {Placement(), Placement(Shard(1))})
      compare_a_step(world, make, run_it, data, {{world.size()}, {of_data}, columns_and_rows},
                     adamw);
  });
}

TEST_P(Layers, ATransformerOfTorch) {
  using torch::nn::Transformer;
  std::function<Transformer()> make = [] {
    return Transformer(torch::nn::TransformerOptions(8, 4, 1, 1).dim_feedforward(12).dropout(0.0));
  };
  std::function<at::Tensor(Transformer&, const at::Tensor&)> run_it = [](Transformer& model,
                                                                         const at::Tensor& x) {
    auto later = torch::nn::TransformerImpl::generate_square_subsequent_mask(5).to(at::kDouble);
    at::Tensor padding = at::zeros({4, 5}, at::kBool);
    padding.select(0, 2).narrow(0, 3, 2).fill_(true);
    at::Tensor y = model->forward(x, x * 0.5, later, later, later, padding, padding, padding);
    return y.pow(2).mean();
  };
  at::Tensor data = at::arange(5 * 4 * 8, at::kDouble).view({5, 4, 8}).sin();
  Layouts rows = {{"linear1.weight", Shard(0)},  {"linear1.bias", Shard(0)},
                  {"linear2.weight", Shard(1)},  {"in_proj_weight", Shard(0, 3)},
                  {"in_proj_bias", Shard(0, 3)}, {"out_proj.weight", Shard(1)}};
  run([&](Group world) {
    for (Placement of_data : {Placement(), Placement(Shard(1))})
      compare_a_step(world, make, run_it, data, {{world.size()}, {of_data}, rows}, sgd);
    for (const Trial& trial : random_trials(world.size()))
      compare_a_step(world, make, run_it, data, trial, sgd);
  });
}

// As in He et al., Deep Residual Learning for Image Recognition, with few channels.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int from, int to, int stride) {
    auto conv = [&](int in, int size, int step) {
      return torch::nn::Conv2d(
          torch::nn::Conv2dOptions(in, to, size).stride(step).padding(size / 2).bias(false));
    };
    body = register_module(
        "body",
        torch::nn::Sequential(conv(from, 3, stride), torch::nn::BatchNorm2d(to),
                              torch::nn::ReLU(true), conv(to, 3, 1), torch::nn::BatchNorm2d(to)));
    if (from != to)
      skip = register_module(
          "skip", torch::nn::Sequential(conv(from, 1, stride), torch::nn::BatchNorm2d(to)));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::relu(body->forward(x) + (skip ? skip->forward(x) : x));
  }
  torch::nn::Sequential body{nullptr}, skip{nullptr};
};
TORCH_MODULE(ResidualBlock);

torch::nn::Sequential resnet18(int width, int classes) {
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 7).stride(2).padding(3).bias(false)),
      torch::nn::BatchNorm2d(width), torch::nn::ReLU(true),
      torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int channels = width;
  for (int stage = 0; stage < 4; ++stage) {
    int to = width << stage;
    net->push_back(ResidualBlock(channels, to, stage == 0 ? 1 : 2));
    net->push_back(ResidualBlock(to, to, 1));
    channels = to;
  }
  net->push_back(torch::nn::AdaptiveAvgPool2d(1));
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(channels, classes));
  return net;
}

at::Tensor loss_of_classes(torch::nn::Sequential& model, const at::Tensor& x) {
  at::Tensor target = at::arange(x.size(0)).remainder(3);
  return torch::nn::functional::cross_entropy(model->forward(x), target);
}

TEST_P(Layers, AResNet18) {
  std::function<torch::nn::Sequential()> make = [] { return resnet18(2, 5); };
  std::function<at::Tensor(torch::nn::Sequential&, const at::Tensor&)> run_it = loss_of_classes;
  at::Tensor data = at::arange(5 * 3 * 33 * 33, at::kDouble).view({5, 3, 33, 33}).sin();
  run([&](Group world) {
    for (const Trial& trial : random_trials(world.size()))
      compare_a_step(world, make, run_it, data, trial, sgd);
  });
}

TEST_P(Layers, AConvolutionalNet) {
  using torch::nn::Sequential;
  std::function<Sequential()> make = [] {
    return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)),
                      torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::BatchNorm2d(4),
                      torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3)),
                      torch::nn::GroupNorm(2, 4), torch::nn::AvgPool2d(1), torch::nn::Flatten(),
                      torch::nn::BatchNorm1d(16), torch::nn::Linear(16, 3));
  };
  std::function<at::Tensor(Sequential&, const at::Tensor&)> run_it = loss_of_classes;
  at::Tensor data = at::arange(4 * 2 * 8 * 8, at::kDouble).view({4, 2, 8, 8}).sin();
  Layouts channels = {{"0.weight", Shard(0)}, {"0.bias", Shard(0)},       {"3.weight", Shard(0)},
                      {"3.bias", Shard(0)},   {"running_mean", Shard(0)}, {"4.weight", Shard(1)}};
  run([&](Group world) {
    for (Placement of_data : {Placement(), Placement(Shard(0))})
      compare_a_step(world, make, run_it, data, {{world.size()}, {of_data}}, sgd);
    compare_a_step(world, make, run_it, data, {{world.size()}, {Replicate()}, channels}, sgd);
    for (const Trial& trial : random_trials(world.size()))
      compare_a_step(world, make, run_it, data, trial, sgd);
  });
}

// For dropout, ranks are processes, because each process has its own generators.
TEST(LayersOfProcesses, ATransformerWithDropoutDrawsWhatOneProcessDoes) {
  using torch::nn::Transformer;
  std::function<Transformer()> make = [] {
    return Transformer(torch::nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(12).dropout(0.3));
  };
  std::function<at::Tensor(Transformer&, const at::Tensor&)> run_it = [](Transformer& model,
                                                                         const at::Tensor& x) {
    torch::manual_seed(9);
    return model->forward(x, x * 0.5).pow(2).mean();
  };
  at::Tensor data = at::arange(5 * 4 * 8, at::kDouble).view({5, 4, 8}).sin();
  for (int ranks : {2, 3})
    test::run_group(test::BackendKind::shm, ranks, [&](Group world) {
      for (const Trial& trial : random_trials(world.size()))
        compare_a_step(world, make, run_it, data, trial, sgd);
    });
}

TEST(LayersOfProcesses, AConvNetWithDropoutOfChannelsTrainsAsOneProcess) {
  using models::ConvNet;
  std::function<ConvNet()> make = [] { return ConvNet(); };
  std::function<at::Tensor(ConvNet&, const at::Tensor&)> run_it = [](ConvNet& model,
                                                                     const at::Tensor& x) {
    torch::manual_seed(9);
    at::Tensor target = at::arange(x.size(0)).remainder(3);
    return at::nll_loss(model->forward(x), target);
  };
  at::Tensor data = at::arange(3 * 28 * 28, at::kDouble).view({3, 1, 28, 28}).sin();
  for (int ranks : {1, 3})
    test::run_group(test::BackendKind::shm, ranks, [&](Group world) {
      for (const Trial& trial : random_trials(world.size()))
        compare_a_step(world, make, run_it, data, trial, adam);
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Layers,
                         testing::Values(std::tuple(test::BackendKind::local, 1),
                                         std::tuple(test::BackendKind::local, 2),
                                         std::tuple(test::BackendKind::local, 3),
                                         std::tuple(test::BackendKind::local, 4)),
                         test::backend_test_name);

}  // namespace
}  // namespace lockstep
