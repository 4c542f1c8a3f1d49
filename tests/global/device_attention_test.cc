// Rules of CUDA's attention kernels. CPU kernels with the same results replace them; the numbers
// come from LibTorch's own CPU kernels.
#include <lockstep/global/tensor.h>

#include "support/torch/ranks.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep {
namespace {

using at::Tensor;
using c10::SymInt;
using Scale = std::optional<double>;
using Mask = std::optional<Tensor>;

// The CPU's kernel needs values with as many features as the keys; those of CUDA do not. So values
// get features of zeros, and results lose them.
Tensor widened(const Tensor& v, const Tensor& q) {
  return v.size(3) == q.size(3) ? v : at::constant_pad_nd(v, {0, q.size(3) - v.size(3)});
}
Tensor narrowed(const Tensor& result, const Tensor& v) {
  if (result.size(3) == v.size(3)) return result;
  return result.narrow(3, 0, v.size(3)).transpose(1, 2).contiguous().transpose(1, 2);
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                   const Mask& mask, Scale scale) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, widened(v, q), 0.0,
                                                                          causal, mask, scale);
  return {narrowed(out, v), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& gradient, const Tensor& q,
                                            const Tensor& k, const Tensor& v, const Tensor& out,
                                            const Tensor& logsumexp, bool causal, const Mask& mask,
                                            Scale scale) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      widened(gradient, q), q, k, widened(v, q), widened(out, q),
      logsumexp.narrow(2, 0, q.size(2)).contiguous(), 0.0, causal, mask, scale);
  return {dq, dk, narrowed(dv, v)};
}

Tensor state(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, dtype).zero_();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v, double, bool causal, bool, Scale scale) {
  auto [out, logsumexp] = forward(q, k, v, causal, {}, scale);
  return {out,
          logsumexp,
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2),
          state({2}, at::kUInt64),
          state({}, at::kUInt64),
          at::empty({0}, q.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& gradient, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& logsumexp,
                                                  const Tensor&, const Tensor&, SymInt, SymInt,
                                                  double, bool causal, const Tensor& seed,
                                                  const Tensor&, Scale scale) {
  EXPECT_EQ(seed.numel(), 2);
  return backward(gradient, q, k, v, out, logsumexp, causal, {}, scale);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Mask& mask, bool keeps,
                                                     double, bool causal, Scale scale) {
  auto [out, logsumexp] = forward(q, k, v, causal, mask, scale);
  const std::int64_t tokens = q.size(2), rounded = (tokens + 31) / 32 * 32;
  Tensor kept = at::constant_pad_nd(logsumexp, {0, rounded - tokens});
  if (!keeps) kept = kept.narrow(2, 0, 0);
  return {out, kept.contiguous(), state({}, at::kLong), state({}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& gradient, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
    const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&, double,
    std::array<bool, 4>, bool causal, Scale scale) {
  auto [dq, dk, dv] = backward(gradient, q, k, v, out, logsumexp, causal,
                               mask.defined() ? Mask(mask) : Mask(), scale);
  return {dq, dk, dv, Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> cudnn(
    const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, bool, double, bool causal,
    bool, Scale scale) {
  auto [out, logsumexp] = forward(q, k, v, causal, mask, scale);
  return {out,
          logsumexp.unsqueeze(-1),
          Tensor(),
          Tensor(),
          q.size(2),
          k.size(2),
          state({}, at::kLong),
          state({}, at::kLong),
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor& gradient, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& logsumexp,
                                                  const Tensor&, const Tensor&, const Tensor& mask,
                                                  const Tensor&, const Tensor&, SymInt, SymInt,
                                                  double, bool causal, Scale scale) {
  return backward(gradient, q, k, v, out, logsumexp.squeeze(-1), causal,
                  mask.defined() ? Mask(mask) : Mask(), scale);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_flash_attention", &flash);
  library.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  library.impl("_scaled_dot_product_efficient_attention", &efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  library.impl("_scaled_dot_product_cudnn_attention", &cudnn);
  library.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

struct Kernel {
  std::string name;
  std::function<Tensor(const Tensor&, const Tensor&, const Tensor&, const Mask&)> run;
  bool takes_masks = true;
};

std::vector<Kernel> kernels() {
  auto by_flash = [](const Tensor& q, const Tensor& k, const Tensor& v, const Mask&) {
    return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true));
  };
  auto by_efficient = [](const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) {
    return std::get<0>(
        at::_scaled_dot_product_efficient_attention(q, k, v, mask, true, 0.0, !mask));
  };
  auto by_cudnn = [](const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) {
    return std::get<0>(at::_scaled_dot_product_cudnn_attention(q, k, v, mask, true, 0.0, !mask));
  };
  return {{"flash", by_flash, false}, {"efficient", by_efficient}, {"cudnn", by_cudnn}};
}

Tensor numbers(at::IntArrayRef sizes, int seed) {
  const Tensor count = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (count * 0.37 + seed).sin().reshape(sizes);
}

// Compares forward and backward of queries, keys and values in these placements with a single
// process.
void expect_as_on_one(const Mesh& mesh, const Kernel& kernel, const Placements& placed,
                      const Mask& mask = {}, std::int64_t tokens = 5,
                      std::int64_t value_features = 8) {
  constexpr std::int64_t heads = 4;
  std::vector<Tensor> alone, there;
  for (int i = 0; i < 3; ++i) {
    // The layout is that of a model: [rows, tokens, heads, features], transposed.
    const Tensor values =
        numbers({2, tokens, heads, i == 2 ? value_features : 8}, i).transpose(1, 2);
    alone.push_back(values.clone(at::MemoryFormat::Preserve).requires_grad_());
    there.push_back(distribute(values, mesh, placed).requires_grad_());
  }
  const Tensor expected = kernel.run(alone[0], alone[1], alone[2], mask);
  const Mask global =
      mask ? Mask(distribute(*mask, mesh, Placements(placed.size(), Replicate()))) : Mask();
  const Tensor found = kernel.run(there[0], there[1], there[2], global);
  EXPECT_TRUE(at::allclose(full_tensor(found.detach()), expected.detach(), 1e-12, 1e-12))
      << kernel.name;
  if (placed[0] == Placement(Shard(1)) && heads % mesh.axes()[0].size == 0)
    EXPECT_EQ(placements(found), placements(there[0])) << kernel.name;
  expected.square().sum().backward();
  full_tensor(found.square().sum()).backward();
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(at::allclose(full_tensor(there[static_cast<std::size_t>(i)].grad()),
                             alone[static_cast<std::size_t>(i)].grad(), 1e-12, 1e-12))
        << kernel.name << ", gradient " << i;
}

TEST(DeviceAttention, IsThatOfOneProcess) {
  for (const int ranks : {1, 2, 3, 4})
    test::run_group(test::BackendKind::local, ranks, [&](Group world) {
      const Mesh mesh(std::move(world), {{"tp", ranks}});
      const Tensor mask = numbers({1, 1, 5, 5}, 7);
      for (const Kernel& kernel : kernels())
        for (const Placement& cut : {Placement(Replicate()), Placement(Shard(0)),
                                     Placement(Shard(1)), Placement(Shard(2))}) {
          expect_as_on_one(mesh, kernel, {cut});
          if (kernel.takes_masks) expect_as_on_one(mesh, kernel, {cut}, mask);
        }
    });
}

// Keys and values travel around the ring, and no rank has the scores of all.
TEST(DeviceAttention, OfShardedTokensIsARing) {
  for (const int ranks : {2, 3})
    test::run_group(test::BackendKind::local, ranks, [&](Group world) {
      const Mesh mesh(std::move(world), {{"cp", ranks}});
      for (const Kernel& kernel : kernels())
        for (const Placement cut : {Placement(Shard(2)), Placement(Shard(2).zigzag())}) {
          constexpr std::int64_t tokens = 64;
          expect_as_on_one(mesh, kernel, {cut}, {}, tokens);
          expect_as_on_one(mesh, kernel, {cut}, {}, ranks - 1);  // the last rank has no tokens
          if (kernel.takes_masks) expect_as_on_one(mesh, kernel, {cut}, {}, tokens, 4);
          const Tensor x = distribute(numbers({2, 4, tokens, 8}, 1), mesh, {cut});
          EXPECT_EQ(placements(kernel.run(x, x, x, {})), Placements{cut}) << kernel.name;
          at::NoGradGuard no_grad;
          EXPECT_EQ(placements(kernel.run(x, x, x, {})), Placements{cut}) << kernel.name;
        }
    });
}

// A rank would draw other numbers for its heads than a single process, so nothing is sharded, even
// if an earlier call had no dropout.
TEST(DeviceAttention, WithDropoutNothingIsCut) {
  test::run_group(test::BackendKind::local, 2, [&](Group world) {
    const Mesh mesh(std::move(world), {{"tp", 2}});
    const Tensor x = distribute(numbers({2, 4, 5, 8}, 1), mesh, {Shard(1)});
    for (const double dropout : {0.0, 0.5, 0.0}) {
      const Placements expected = {dropout > 0 ? Placement(Replicate()) : Placement(Shard(1))};
      EXPECT_EQ(placements(std::get<0>(at::_scaled_dot_product_flash_attention(x, x, x, dropout))),
                expected);
      EXPECT_EQ(placements(std::get<0>(
                    at::_scaled_dot_product_efficient_attention(x, x, x, {}, true, dropout))),
                expected);
      EXPECT_EQ(placements(std::get<0>(
                    at::_scaled_dot_product_cudnn_attention(x, x, x, {}, true, dropout))),
                expected);
    }
  });
}

}  // namespace
}  // namespace lockstep
