// The parallel plans of the library's models.
#include <lockstep/parallel/model_plans.h>

#include "parallel/own_net.h"
#include "support/torch/backend_test.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>

#include <vector>

namespace lockstep::test {
namespace {

// The pieces of a model's plan must compute the same as its forward().
template <typename Model>
void expect_pieces(Model model, const at::Tensor& input) {
  at::NoGradGuard no_grad;
  Tensors x{input};
  for (const ModelPiece& piece : lockstep::parallel_plan(model).pieces) x = piece.forward(x);
  EXPECT_TRUE(at::equal(x[0], model->forward(input)));
}

TEST(ModelPlans, PiecesAreForward) {
  expect_pieces(models::Mlp(models::MlpOptions{.sizes = {12, 8, 8, 4}}), values({5, 3, 4}, 1));
  expect_pieces(models::Gpt(small_gpt()), TokenBatch(1).ids);
  for (const bool is_small : {true, false})
    expect_pieces(
        models::ResNet18(models::ResNetOptions{.classes = 4, .cifar_stem = is_small, .width = 8}),
        values({2, 3, 32, 32}, 1));
  torch::nn::Sequential sequential(torch::nn::Linear(4, 6), torch::nn::ReLU(),
                                   torch::nn::Linear(6, 3));
  at::NoGradGuard no_grad;
  Tensors x{values({5, 4}, 1)};
  const ParallelPlan plan = lockstep::parallel_plan(sequential);
  EXPECT_EQ(plan.pieces.size(), 3u);
  for (const ModelPiece& piece : plan.pieces) x = piece.forward(x);
  EXPECT_TRUE(at::equal(x[0], sequential->forward(values({5, 4}, 1))));
}

TEST(ModelPlans, ImageModelsAndMlpsTrainOnTheirAxes) {
  const auto images = values({8, 3, 16, 16}, 1);
  const at::Tensor classes = at::arange(8, at::kLong) % 4;
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{{"dp", 2}}, {{"pp", 2}, {"fsdp", 2}}})
    run_group(BackendKind::local, ranks_of(axes), [&](Group world) {
      const auto make = [] {
        return models::ResNet18(
            models::ResNetOptions{.classes = 4, .cifar_stem = true, .width = 4});
      };
      auto plain = made_alike(make, at::kDouble), net = made_alike(make, at::kDouble);
      ParallelModel model = parallelize(net, Mesh(world, axes), {.micro_batches = 2});
      const Group data = model.data();
      const at::Tensor x = images.to(at::kDouble);
      double expected = 0;
      for (const at::Tensor& rows : at::arange(8).chunk(4)) {  // batch norms normalize over these
        const at::Tensor loss =
            at::cross_entropy_loss(plain->forward(x.index({rows})), classes.index({rows})) / 4;
        loss.backward();
        expected += loss.item<double>();
      }
      const at::Tensor loss = model.step({own_rows(data, x)}, {own_rows(data, classes)});
      EXPECT_NEAR(average_over(data, loss), expected, 1e-11);
      expect_norm_of(*plain, model);
    });
  for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"tp", 2}}, {{"pp", 2}}})
    run_group(BackendKind::local, 2, [&](Group world) {
      const auto make = [] {
        models::Mlp mlp(models::MlpOptions{.sizes = {8, 8, 8, 8, 8}});
        fill_parameters(*mlp, 3);
        mlp->to(at::kDouble);
        return mlp;
      };
      auto plain = make(), net = make();
      ParallelModel model = parallelize(net, Mesh(world, axes));
      const at::Tensor x = values({6, 8}, 1).to(at::kDouble);
      const at::Tensor expected = mean_square({plain->forward(x)}, {x});
      expected.backward();
      EXPECT_NEAR(model.step({x}, {x}, mean_square).item<double>(), expected.item<double>(), 1e-12);
      expect_norm_of(*plain, model);
    });
}

}  // namespace
}  // namespace lockstep::test
