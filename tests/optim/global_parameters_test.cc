// Our optimizers and clipping give the same results on global parameters as on plain ones.
#include <lockstep/comm/local.h>
#include <lockstep/global/tensor.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/clipping.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

using Tensors = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;

at::Tensor waves(at::IntArrayRef sizes, double phase) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) + phase).sin().view(sizes);
}

Tensors plain_parameters(at::ScalarType dtype) {
  return {waves({7, 6}, 0).to(dtype), waves({6}, 1).to(dtype), waves({3, 5}, 2).to(dtype)};
}

// Returns three parameters on a mesh of two axes; one of them is not row-major.
Tensors global_parameters(const Mesh& mesh, at::ScalarType dtype) {
  Tensors plain = plain_parameters(dtype);
  return {distribute(plain[0], mesh, {Shard(0), Replicate()}),
          distribute(plain[1], mesh, {Replicate(), Shard(0)}),
          distribute(plain[2].t(), mesh, {Shard(0), Shard(1)}).t().detach()};
}

// Sets gradients that are Partial or have other placements than their parameters.
void set_gradients(Tensors& parameters, const Mesh* mesh, int step) {
  std::vector<Placements> placed = {
      {Partial(), Replicate()}, {Shard(0), Partial()}, {Shard(1), Shard(0)}};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::NoGradGuard no_grad;
    at::Tensor gradient = waves(parameters[i].sizes(), 3.0 * step + static_cast<double>(i))
                              .to(parameters[i].scalar_type());
    if (mesh != nullptr)
      gradient = redistribute(distribute(gradient, *mesh, {Replicate(), Replicate()}), placed[i]);
    parameters[i].mutable_grad() = gradient;
  }
}

double step_all(Tensors& parameters, const MakeOptimizer& make, const Mesh* mesh) {
  for (at::Tensor& one : parameters) one.requires_grad_();
  auto optimizer = make(parameters);
  double norms = 0;
  for (int step = 0; step < 3; ++step) {
    set_gradients(parameters, mesh, step);
    norms += clip_grad_norm(parameters, 1.5, step == 1 ? 3 : 2);
    if (step == 2) {
      norms += gradient_norm(parameters, std::numeric_limits<double>::infinity());
      norms += *step_transformed(*optimizer, {.scale = 0.5, .clip_norm = 0.4}).norm;
    } else {
      optimizer->step();
    }
  }
  return norms;
}

void expect_as_plain(const MakeOptimizer& make, at::ScalarType dtype, double tolerance) {
  Tensors plain = plain_parameters(dtype);
  double norms = step_all(plain, make, nullptr);
  for (int ranks : {1, 2, 4})
    run_as_threads(ranks, [&](Group world) {
      Mesh mesh(world, {{"dp", ranks == 4 ? 2 : 1}, {"tp", -1}});
      Tensors parameters = global_parameters(mesh, dtype);
      parameters[2] = parameters[2].requires_grad_();
      EXPECT_NEAR(step_all(parameters, make, &mesh), norms, 1e-5 + tolerance * norms);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        at::Tensor found = full_tensor(parameters[i].detach());
        EXPECT_TRUE(found.allclose(plain[i].detach(), tolerance, tolerance))
            << i << describe(parameters[i]);
      }
    });
}

template <class Optimizer, class Options>
MakeOptimizer maker(Options options, UpdateOptions update = {}) {
  return [=](Tensors parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options, update);
  };
}

TEST(GlobalParameters, AreUpdatedAsPlainOnes) {
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  auto sgd = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    expect_as_plain(maker<SGD>(sgd), dtype, 1e-5);
    expect_as_plain(maker<Adam>(AdamOptions(0.1).amsgrad(true)), dtype, 1e-5);
    expect_as_plain(maker<AdamW>(AdamWOptions(0.1).weight_decay(0.1)), dtype, 1e-5);
  }
  expect_as_plain(maker<AdamW>(AdamWOptions(0.1)), at::kBFloat16, 2e-2);
  expect_as_plain(maker<AdamW>(AdamWOptions(0.1), {.state = StateFormat::bfloat16}), at::kFloat,
                  2e-2);
}

TEST(GlobalParameters, AGradientIsReducedOnce) {
  run_as_threads(2, [](Group world) {
    Mesh mesh(world, {{"dp", 2}});
    Tensors parameters = {distribute(waves({4, 2}, 0), mesh, {Replicate()}).requires_grad_()};
    parameters[0].mutable_grad() = from_local(waves({4, 2}, 1), mesh, {Partial()});
    reset_traffic(mesh);
    (void)clip_grad_norm(parameters, 0.1);
    AdamW(parameters).step();
    EXPECT_EQ(traffic(mesh).calls(), 1);
  });
}

TEST(GlobalParameters, NumbersThatAreNotFiniteOnOneRankAreSeenByAll) {
  run_as_threads(3, [](Group world) {
    Mesh mesh(world, {{"dp", 3}});
    at::Tensor w = distribute(waves({6}, 0), mesh, {Shard(0)}).requires_grad_();
    at::Tensor gradient = waves({6}, 1);
    gradient[5] = std::numeric_limits<double>::quiet_NaN();
    w.mutable_grad() = distribute(gradient, mesh, {Shard(0)});
    SGD sgd({w}, torch::optim::SGDOptions(0.1));
    EXPECT_FALSE(step_transformed(sgd, {.skip_if_not_finite = true}).stepped);
  });
}

}  // namespace
}  // namespace lockstep::optim
