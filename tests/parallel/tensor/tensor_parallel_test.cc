// Layers that are sharded over the axis tp: gradients, losses and parameters equal those of one
// process, and the handle works like other handles.
#include <lockstep/parallel/parallelize.h>

#include <lockstep/global/tensor.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/parallel/sharded/deferred.h>

#include "parallel/tensor/support.h"
#include "parallel/tensor/tensor_state.h"
#include "support/torch/allocations.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/utils/clip_grad.h>

#include <set>

namespace lockstep {
namespace {

using namespace test;

torch::nn::Sequential wide_mlp() {
  return torch::nn::Sequential(torch::nn::Linear(6, 10), torch::nn::GELU(),
                               torch::nn::Linear(10, 4));
}
const TensorPlan mlp_plan = {{"0", Colwise()}, {"2", Rowwise()}};

Mesh layers_on(const Group& ranks) { return Mesh(ranks, {{"tp", ranks.size()}}); }

// If no plan is given, uses the model's plan.
template <typename Net>
ParallelModel cut_layers(const Net& model, const Group& ranks, const TensorPlan& plan = {}) {
  return parallelize(model, layers_on(ranks), {.tensor = plan});
}

at::Tensor square_loss(const at::Tensor& y) { return y.square().mean(); }

class Parallelize : public BackendTest {};

void expect_refused(const std::function<void()>& action, const std::vector<std::string>& words) {
  const std::string found = message_of<InvalidArgument>(action);
  for (const std::string& word : words) expect_contains(found, word);
}

TEST_P(Parallelize, AnMlpHasTheGradientsOfOneProcess) {
  run([&](Group group) {
    auto plain = made_alike(wide_mlp, at::kDouble), model = made_alike(wide_mlp, at::kDouble);
    auto tp = cut_layers(model, group, mlp_plan);
    const at::Tensor x = values({5, 6}, 3).to(at::kDouble);
    for (int step = 0; step < 2; ++step) {
      at::Tensor loss = square_loss(model->forward(x)), expected = square_loss(plain->forward(x));
      EXPECT_NEAR(number_of(loss), expected.item<double>(), 1e-14);
      loss.backward();
      expected.backward();  // the second one adds
      expect_gradients_of(tp, gradients_by_name(*plain), 1e-13);
    }
  });
}

// Two pairs of layers with few rows, with `between` between the pairs. Expects one all_reduce of
// activations per pair in forward, one before the first layer of the second pair in backward, and
// none of a weight's gradient.
template <typename Between>
void expect_activations_alone_are_reduced(Group group, const Between& between) {
  constexpr std::int64_t width = 24, rows = 2;
  auto make = [&] {
    using torch::nn::Linear;
    return torch::nn::Sequential(Linear(width, width), torch::nn::ReLU(), Linear(width, width),
                                 between, Linear(width, width), torch::nn::ReLU(),
                                 Linear(width, width));
  };
  auto plain = made_alike(make, at::kDouble), model = made_alike(make, at::kDouble);
  auto tp = cut_layers(model, group,
                       {{"0", Colwise()}, {"2", Rowwise()}, {"4", Colwise()}, {"6", Rowwise()}});
  const Mesh tensors = tensors_of(*model);
  const at::Tensor x = values({rows, width}, 3).to(at::kDouble);
  const std::int64_t n = group.size(), activation = rows * width * 8;
  reset_traffic(tensors);
  at::Tensor loss = square_loss(model->forward(x));
  EXPECT_EQ(traffic(tensors).all_reduces, traffic(tensors).calls());
  EXPECT_EQ(traffic(tensors).bytes, 2 * (2 * activation * (n - 1) / n));
  reset_traffic(tensors);
  loss.backward();
  EXPECT_EQ(traffic(tensors).all_reduces, 1);
  EXPECT_EQ(traffic(tensors).calls(), 1);
  EXPECT_EQ(traffic(tensors).bytes, 2 * activation * (n - 1) / n);
  square_loss(plain->forward(x)).backward();
  expect_gradients_of(tp, gradients_by_name(*plain), 1e-13);
}

TEST_P(Parallelize, WideLayersWithFewRowsReduceActivationsAlone) {
  run([&](Group group) {
    expect_activations_alone_are_reduced(group, torch::nn::ReLU());
    expect_activations_alone_are_reduced(group, torch::nn::GELU());
  });
}

// The result of the product becomes the gradient; no other tensor of this size is allocated.
TEST_P(Parallelize, GradientsOfWeightsAreNotCopied) {
  run([&](Group group) {
    constexpr std::int64_t width = 384;
    auto make = [&] {
      return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU());
    };
    auto model = made_alike(make, at::kDouble);
    auto tp = cut_layers(model, group, {{"0", Colwise()}});
    at::Tensor loss = square_loss(model->forward(at::ones({1, width}, at::kDouble)));
    Allocations allocations;
    loss.backward();
    const std::int64_t gradient = width * width * 8 / group.size();
    EXPECT_GE(allocations.held(), gradient);
    EXPECT_LT(allocations.peak(), gradient + gradient / 2);
  });
}

TEST_P(Parallelize, ZeroingIsTheSameFromAllSides) {
  run([&](Group group) {
    auto plain = made_alike(wide_mlp, at::kDouble), model = made_alike(wide_mlp, at::kDouble);
    auto tp = cut_layers(model, group, mlp_plan);
    torch::optim::AdamW adamw(tp.parameters(), torch::optim::AdamWOptions(0.01));
    const at::Tensor x = values({5, 6}, 3).to(at::kDouble);
    square_loss(plain->forward(x)).backward();
    const std::vector<std::function<void()>> ways = {
        [&] { tp.zero_grad(); }, [&] { tp.zero_grad(false); }, [&] { adamw.zero_grad(); },
        [&] { model->zero_grad(); }};
    for (const auto& zero : ways) {
      square_loss(model->forward(x)).backward();
      zero();
      square_loss(model->forward(x)).backward();
      expect_gradients_of(tp, gradients_by_name(*plain), 1e-13);
      tp.zero_grad();
    }
  });
}

// Two networks may be trained in turns: gradients that the module's zero_grad() has cleared must
// not be applied again.
TEST_P(Parallelize, ZeroingTheModuleReachesWhatTheNextBackwardDoesNot) {
  run([&](Group group) {
    auto model = made_alike(wide_mlp, at::kDouble);
    auto tp = cut_layers(model, group, mlp_plan);
    const auto backward = [&](std::size_t layer) {
      const at::Tensor x = values({5, layer == 0 ? 6 : 10}, 3).to(at::kDouble);
      square_loss(model->at<torch::nn::LinearImpl>(layer).forward(x)).backward();
    };
    const auto layers = [&] {
      std::set<char> names;
      for (const Part& part : tp.named_parameters())
        if (part.tensor.grad().defined()) names.insert(part.name.front());
      return names;
    };
    for (int turn = 0; turn < 2; ++turn) {
      backward(0);
      EXPECT_EQ(layers(), std::set{'0'});
      model->zero_grad();
      backward(2);
      EXPECT_EQ(layers(), std::set{'2'});
      backward(0);  // adds: nothing was zeroed
      EXPECT_EQ(layers(), (std::set{'0', '2'}));
      model->zero_grad();
    }
  });
}

TEST_P(Parallelize, ClippingTakesTheNormOfAllParts) {
  run([&](Group group) {
    auto plain = made_alike(wide_mlp, at::kDouble), model = made_alike(wide_mlp, at::kDouble);
    auto tp = cut_layers(model, group, mlp_plan);
    const at::Tensor x = values({5, 6}, 3).to(at::kDouble);
    square_loss(model->forward(x)).backward();
    square_loss(plain->forward(x)).backward();
    const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.001);
    EXPECT_NEAR(tp.clip_grad_norm(0.001), expected, 1e-9 * expected);
    expect_gradients_of(tp, gradients_by_name(*plain), 1e-9);
  });
}

// Gradients of parameters that are added or unfrozen later would not reach the handle.
TEST_P(Parallelize, WhatTrainsLaterIsNamed) {
  run([&](Group group) {
    const at::Tensor x = values({5, 6}, 3).to(at::kDouble);
    for (const bool is_new : {false, true}) {
      auto model = made_alike(wide_mlp, at::kDouble);
      at::Tensor frozen = model->at<torch::nn::LinearImpl>(2).weight;
      frozen.requires_grad_(false);
      auto tp = cut_layers(model, group, mlp_plan);
      const auto backward = [&] { square_loss(model->forward(x)).backward(); };
      backward();
      tp.zero_grad();
      if (is_new) {
        model->register_parameter("late", at::ones({3}));
      } else {
        frozen.requires_grad_(true);
      }
      for (int again = 0; again < 2; ++again)
        for (const std::function<void()>& use :
             {std::function<void()>(backward), std::function<void()>([&] { tp.zero_grad(); })})
          expect_refused(use, {is_new ? "late" : "2.weight", "since parallelize() was called"});
      if (is_new) continue;
      frozen.requires_grad_(false);
      tp.zero_grad();
      backward();
    }
  });
}

TEST_P(Parallelize, ABufferThatIsRegisteredLaterIsNamed) {
  run([&](Group group) {
    auto model = made_alike(wide_mlp, at::kDouble);
    auto tp = cut_layers(model, group, mlp_plan);
    model->register_buffer("late", at::ones({3}));
    expect_refused([&] { tp.zero_grad(); },
                   {"late is a new buffer", "since parallelize() was called"});
  });
}

// Each of the parameters would get its own memory, and their values would differ later.
TEST_P(Parallelize, ParametersThatShareMemoryAreRefused) {
  run([&](Group group) {
    auto model = made_alike(wide_mlp, at::kDouble);
    const at::Tensor first = model->at<torch::nn::LinearImpl>(0).weight;
    const auto call = [&] { (void)cut_layers(model, group, mlp_plan); };
    {
      at::Tensor tied = model->register_parameter("tied", first.detach().t());
      expect_refused(call, {"parallelize", "0.weight", "tied"});
      tied.set_data(at::ones({3}));
    }
    const at::Tensor average = first.detach();
    expect_refused(call, {"parallelize", "0.weight", "outside"});
    EXPECT_FALSE(is_global(first));
  });
}

// An optimizer on the module's parameters would silently train wrong values or nothing, so each use
// is refused.
TEST_P(Parallelize, TheModulesOwnParametersAreRefusedElsewhere) {
  run([&](Group group) {
    auto model = made_alike(wide_mlp, at::kDouble);
    auto tp = cut_layers(model, group, mlp_plan);
    const auto build = [&] {
      torch::optim::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(0.01));
    };
    EXPECT_ANY_THROW(build());
    square_loss(model->forward(values({5, 6}, 3).to(at::kDouble))).backward();
    const auto clip = [&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0); };
    try {
      clip();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      expect_contains(error.what(), "handle.parameters()");
    }
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(tp.parameters(), 1.0), InvalidArgument);
  });
}

TEST_P(Parallelize, StatesAreThoseOfTheWholeModel) {
  run([&](Group group) {
    const auto make = [] { return models::Gpt(small_gpt()); };
    auto plain = made_alike(make, at::kFloat), model = made_alike(make, at::kFloat);
    auto tp = cut_layers(model, group);
    const auto expected = lockstep::state_dict(*plain);
    const auto found = tp.state_dict();
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(same_bits(found.at(name), tensor)) << name;
    auto other = expected;
    for (auto& [name, tensor] : other) tensor = tensor + 1;
    tp.load_state_dict(other);
    for (const auto& [name, tensor] : tp.state_dict())
      EXPECT_TRUE(same_bits(tensor, other.at(name))) << name;
    std::map<std::string, at::Tensor> pasted;
    for (const Part& part : tp.state_parts()) {
      auto& whole = pasted[part.name];
      if (!whole.defined()) whole = at::zeros(part.slice.sizes);
      paste_part(part.tensor, part, whole);
      EXPECT_TRUE(same_bits(cut_part(other.at(part.name), part), part.tensor.reshape({-1})));
    }
    const HandleMemory memory = tp.memory();
    std::int64_t bytes = 0;
    for (const Part& part : tp.named_parameters())
      bytes += static_cast<std::int64_t>(part.tensor.nbytes());
    EXPECT_EQ(memory.shards + memory.whole, bytes);
    other["unknown"] = at::ones({1});
    EXPECT_THROW(tp.load_state_dict(other), BadInput);
  });
}

TEST_P(Parallelize, AModuleWithoutItsHandleIsOfGlobalTensors) {
  run([&](Group group) {
    auto model = made_alike(wide_mlp, at::kDouble);
    { auto tp = cut_layers(model, group, mlp_plan); }
    square_loss(model->forward(values({5, 6}, 3).to(at::kDouble))).backward();
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_TRUE(parameter.is_leaf());
      EXPECT_TRUE(is_global(parameter.grad()));
    }
  });
}

TEST_P(Parallelize, FrozenParametersAndBuffersStayWhatTheyAre) {
  run([&](Group group) {
    const auto make = [] {
      torch::nn::Sequential model(torch::nn::Linear(6, 10), torch::nn::Linear(10, 4),
                                  torch::nn::BatchNorm1d(4));
      model->parameters()[0].set_requires_grad(false);
      return model;
    };
    auto plain = made_alike(make, at::kDouble), model = made_alike(make, at::kDouble);
    auto tp = cut_layers(model, group, {{"0", Colwise()}, {"1", Rowwise()}});
    const at::Tensor x = values({5, 6}, 3).to(at::kDouble);
    square_loss(model->forward(x)).backward();
    square_loss(plain->forward(x)).backward();
    const auto expected = lockstep::state_dict(*plain);
    for (const auto& [name, tensor] : tp.state_dict())
      EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), expected.at(name).to(at::kDouble), 1e-12))
          << name;
    for (const Part& part : tp.named_parameters())
      EXPECT_EQ(part.tensor.grad().defined(), part.name != "0.weight") << part.name;
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Parallelize, every_backend({3}), backend_test_name);

class OnThreads : public BackendTest {};

// Unchanged layers of LibTorch, compared with one process in float64.
TEST_P(OnThreads, ATransformerOfTorchHasTheGradientsOfOneProcess) {
  const auto make = [] {
    return torch::nn::Transformer(
        torch::nn::TransformerOptions(24, 12, 2, 2).dim_feedforward(20).dropout(0.0));
  };
  run([&](Group group) {
    for (const bool sequence : {false, true}) {
      auto plain = made_alike(make, at::kDouble), model = made_alike(make, at::kDouble);
      auto tp = parallelize(model, layers_on(group),
                            {.tensor = transformer_tensor_plan(12),
                             .sequence_parallel = sequence,
                             .sequence_dim = 0});
      const at::Tensor from = values({7, 2, 24}, 3).to(at::kDouble);
      const at::Tensor to = values({5, 2, 24}, 4).to(at::kDouble);
      // The mean of squares would be constant, because the last layer is a norm.
      const at::Tensor factor = values({5, 2, 24}, 5).to(at::kDouble);
      at::Tensor loss = (model->forward(from, to) * factor).sum();
      at::Tensor expected = (plain->forward(from, to) * factor).sum();
      EXPECT_NEAR(number_of(loss), expected.item<double>(), 1e-12);
      loss.backward();
      expected.backward();
      expect_gradients_of(tp, gradients_by_name(*plain), 1e-11);
    }
  });
}

TEST_P(OnThreads, ARankHasItsPartsOnlyFromTheBeginning) {
  models::GptOptions options = small_gpt(1);
  options.hidden_size = 240;
  options.vocabulary = 1200;
  run([&](Group group) {
    const Allocations allocations;
    auto model = [&] {
      static std::mutex one_at_a_time;
      std::lock_guard lock(one_at_a_time);
      return deferred([&] { return models::Gpt(options); });
    }();
    std::int64_t whole = 0, largest = 0;
    for (const at::Tensor& parameter : model->parameters()) {
      const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
      whole += bytes;
      largest = std::max(largest, bytes);
    }
    auto tp = cut_layers(model, group);
    const HandleMemory memory = tp.memory();
    const std::int64_t own = memory.shards + memory.whole, slack = 64 << 10;
    EXPECT_LT(own, whole / group.size() + (whole - largest) / 8);
    EXPECT_LT(allocations.held(), own + slack);
    // Rank 0 also holds one whole parameter and the parts to send.
    if (!group.is_root()) EXPECT_LT(allocations.peak(), own + largest);
  });
}

TEST_P(OnThreads, TextIsGeneratedAsOnOneProcess) {
  const auto make = [] { return models::Gpt(small_gpt()); };
  run([&](Group group) {
    auto plain = made_alike(make, at::kDouble), model = made_alike(make, at::kDouble);
    auto tp = cut_layers(model, group);
    const at::Tensor begin = TokenBatch(1, 2, 3).ids;
    const models::GenerateOptions greedy{.temperature = 0};
    const at::Tensor found = model->generate(begin, 12, greedy);
    EXPECT_TRUE(
        (is_global(found) ? full_tensor(found) : found).equal(plain->generate(begin, 12, greedy)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OnThreads,
                         testing::Values(std::tuple(BackendKind::local, 2),
                                         std::tuple(BackendKind::local, 3),
                                         std::tuple(BackendKind::local, 4)),
                         backend_test_name);

// If the strategy for the parts throws, the module can still compute and gets its gradients.
TEST(TensorParallel, AModuleThatWasCutAndNotTrainedHasItsGradients) {
  run_as_threads(2, [](Group group) {
    torch::nn::Sequential model = wide_mlp(), plain = wide_mlp();
    fill_parameters(*model, 1);
    fill_parameters(*plain, 1);
    const Mesh mesh(group, {{"tp", 2}});
    {
      TensorParallelState cut(model.ptr(), mesh, {.plan = {{"0", Colwise()}, {"2", Rowwise()}}},
                              mesh);
      EXPECT_NE(cut.parts(), nullptr);
    }
    const at::Tensor x = values({3, 6}, 2);
    model->forward(x).square().sum().backward();
    plain->forward(x).square().sum().backward();
    const auto expected = plain->parameters(), found = model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::allclose(full_tensor(found[i].grad()), expected[i].grad(), 1e-5, 1e-6)) << i;
  });
}

}  // namespace
}  // namespace lockstep
