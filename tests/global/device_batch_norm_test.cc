// The rules of batch normalisation by cuDNN, whose kernels are replaced, so that they run on the
// CPU as well.
#include <lockstep/global/tensor.h>

#include "support/torch/ranks.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cudnn_batch_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace lockstep {
namespace {

constexpr std::int64_t channels = 4;
constexpr double momentum = 0.1, eps = 1e-3;

at::Tensor some_numbers(at::IntArrayRef sizes, int seed) {
  std::int64_t count = 1;
  for (std::int64_t size : sizes) count *= size;
  return at::arange(1, count + 1, at::kDouble).mul(seed).sin().view(sizes);
}

// Input, weight, bias, and running statistics.
std::vector<at::Tensor> arguments() {
  std::vector<at::Tensor> all = {some_numbers({6, channels, 3}, 1), some_numbers({channels}, 2),
                                 some_numbers({channels}, 3)};
  for (at::Tensor& one : all) one.requires_grad_();
  all.push_back(at::zeros({channels}, at::kDouble));
  all.push_back(at::ones({channels}, at::kDouble));
  return all;
}

void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(full_tensor(found.detach()), expected.detach(), 1e-12, 1e-12));
}

void expect_as_on_one(const Mesh& mesh, const Placement& rows, const Placement& of_channels,
                      bool training) {
  std::vector<at::Tensor> alone = arguments(), there;
  for (const at::Tensor& one : arguments())
    there.push_back(distribute(one.detach(), mesh, {there.empty() ? rows : of_channels})
                        .requires_grad_(one.requires_grad()));
  const at::Tensor expected = std::get<0>(at::native_batch_norm(
      alone[0], alone[1], alone[2], alone[3], alone[4], training, momentum, eps));
  const at::Tensor found = std::get<0>(at::cudnn_batch_norm(there[0], there[1], there[2], there[3],
                                                            there[4], training, momentum, eps));
  expect_close(found, expected);
  const at::Tensor native =
      std::get<0>(at::native_batch_norm(there[0], there[1], there[2], there[3].detach().clone(),
                                        there[4].detach().clone(), training, momentum, eps));
  EXPECT_EQ(placements(found), placements(native));
  (expected * some_numbers(expected.sizes(), 5)).sum().backward();
  full_tensor((found * distribute(some_numbers(expected.sizes(), 5), mesh, {rows})).sum())
      .backward();
  for (std::size_t i = 0; i < 3; ++i) expect_close(there[i].grad(), alone[i].grad());
  for (std::size_t i = 3; i < 5; ++i) expect_close(there[i], alone[i]);
}

TEST(DeviceBatchNorm, IsThatOfOneProcess) {
  for (const int ranks : {1, 2, 3})
    test::run_group(test::BackendKind::local, ranks, [&](Group world) {
      const Mesh mesh(std::move(world), {{"dp", ranks}});
      for (const bool training : {true, false}) {
        expect_as_on_one(mesh, Replicate(), Replicate(), training);
        expect_as_on_one(mesh, Shard(0), Replicate(), training);
        expect_as_on_one(mesh, Shard(1), Shard(0), training);
      }
    });
}

}  // namespace
}  // namespace lockstep
