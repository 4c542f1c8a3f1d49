// Attention of tensors that are sharded along the sequence, compared with a single process.
#include "global/ring_attention.h"

#include "global/mesh_context.h"

#include <lockstep/global/tensor.h>

#include "support/difference.h"
#include "support/torch/backend_test.h"
#include "tests_of_global.h"

#include <ATen/ops/linspace.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

namespace lockstep {
namespace {

using test::BackendTest;

struct AttentionCase {
  std::int64_t rows = 2, heads = 4, groups = 4, queries = 12, keys = 12, features = 8;
  bool is_causal = true;
  double dropout = 0;
};

struct Attended {
  at::Tensor output;
  std::array<at::Tensor, 3> gradients;
};

at::Tensor waves(at::IntArrayRef sizes, double seed, at::ScalarType dtype) {
  const std::int64_t count = c10::multiply_integers(sizes);
  return (at::linspace(seed, seed + 7.3 * static_cast<double>(count), count, at::kDouble).sin() * 2)
      .view(sizes)
      .to(dtype);
}

// Makes inputs like a model: heads are split from a dim of [rows, tokens, heads * features].
std::array<at::Tensor, 3> inputs_of(const AttentionCase& one, at::ScalarType dtype) {
  return {waves({one.rows, one.queries, one.heads, one.features}, 0.3, dtype),
          waves({one.rows, one.keys, one.groups, one.features}, 1.1, dtype),
          waves({one.rows, one.keys, one.groups, one.features}, 2.7, dtype)};
}

Attended attend(std::array<at::Tensor, 3> inputs, const AttentionCase& one, const at::Tensor& of) {
  for (at::Tensor& input : inputs) input.requires_grad_();
  at::Tensor output = at::scaled_dot_product_attention(
      inputs[0].transpose(1, 2), inputs[1].transpose(1, 2), inputs[2].transpose(1, 2), {},
      one.dropout, one.is_causal, std::nullopt, one.groups != one.heads);
  output = output.transpose(1, 2);
  (output * of).sum().backward();
  return {output.detach(), {inputs[0].grad(), inputs[1].grad(), inputs[2].grad()}};
}

double ring_difference(const at::Tensor& found, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  const at::Tensor wide = expected.to(at::kDouble);
  return test::nan_as_infinity(
      ((full_tensor(found).to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>());
}

// Returns the largest difference from a single process in float64.
double attention_difference(const Mesh& mesh, const AttentionCase& one, Placement cut,
                            at::ScalarType dtype) {
  const std::array<at::Tensor, 3> wide = inputs_of(one, dtype);
  const at::Tensor of = waves({one.rows, one.queries, one.heads, one.features}, 5.9, dtype);
  std::array<at::Tensor, 3> inputs = wide, global;
  for (std::size_t i = 0; i < 3; ++i) {
    inputs[i] = wide[i].to(at::kDouble);
    global[i] = distribute(wide[i], mesh, {cut});
  }
  const Attended expected = attend(inputs, one, of.to(at::kDouble));
  const Attended found = attend(global, one, distribute(of, mesh, {cut}));
  EXPECT_EQ(placements(found.output)[0], cut) << describe(found.output);
  double largest = ring_difference(found.output, expected.output);
  for (std::size_t i = 0; i < 3; ++i)
    largest = std::max(largest, ring_difference(found.gradients[i], expected.gradients[i]));
  return largest;
}

const std::vector<Placement> ring_cuts = {Shard(1), Shard(1).zigzag()};

class RingOfRanks : public BackendTest {};

TEST_P(RingOfRanks, IsThatOfOneProcess) {
  run([](Group world) {
    const Mesh mesh(world, {{"cp", -1}});
    const std::vector<AttentionCase> cases = {
        {},                                             // causal
        {.queries = 13, .keys = 13},                    // ranks do not divide the length
        {.queries = 3, .keys = 3},                      // some ranks have no tokens
        {.heads = 6, .groups = 2},                      // grouped queries
        {.queries = 11, .keys = 7, .is_causal = false}  // cross attention
    };
    for (const AttentionCase& one : cases)
      for (Placement cut : ring_cuts) {
        EXPECT_LE(attention_difference(mesh, one, cut, at::kDouble), 1e-13);
        EXPECT_LE(attention_difference(mesh, one, cut, at::kFloat), 2e-6);
        EXPECT_LE(attention_difference(mesh, one, cut, at::kBFloat16), 2e-2);
      }
  });
}

// LibTorch's formula consists of several operations, whose random numbers equal those of a single
// process.
TEST_P(RingOfRanks, WithDropoutItHasTheNumbersOfOneProcess) {
  if (backend() != test::BackendKind::shm && size() > 1)
    GTEST_SKIP() << "threads share a generator";
  run([](Group world) {
    const Mesh mesh(world, {{"cp", -1}});
    set_global_options(mesh, {.replicate_plain = true});
    const AttentionCase one{.dropout = 0.4};
    const std::array<at::Tensor, 3> inputs = inputs_of(one, at::kDouble);
    const at::Tensor of = waves({2, 12, 4, 8}, 5.9, at::kDouble);
    at::manual_seed(3);
    const Attended expected = attend(inputs, one, of);
    for (Placement cut : ring_cuts) {
      std::array<at::Tensor, 3> global;
      for (std::size_t i = 0; i < 3; ++i) global[i] = distribute(inputs[i].detach(), mesh, {cut});
      at::manual_seed(3);
      const Attended found = attend(global, one, distribute(of, mesh, {cut}));
      EXPECT_LE(ring_difference(found.output, expected.output), 1e-13);
      EXPECT_LE(ring_difference(found.gradients[1], expected.gradients[1]), 1e-13);
    }
  });
}

// In forward, keys and values travel n - 1 times. In backward, they travel again, and their
// gradients travel n times.
TEST_P(RingOfRanks, WhatTravelsIsWhatTheFormulasSay) {
  run([](Group world) {
    const Mesh mesh(world, {{"cp", -1}});
    const std::int64_t n = world.size(), tokens = 8 * n;
    const AttentionCase one{.groups = 2, .queries = tokens, .keys = tokens};
    std::array<at::Tensor, 3> inputs = inputs_of(one, at::kFloat);
    const std::int64_t part = 2 * one.rows * one.groups * one.features * (tokens / n) * 4;
    for (Placement cut : ring_cuts) {
      for (at::Tensor& input : inputs)
        input = distribute(test::values_of(input), mesh, {cut}).requires_grad_();
      global::MeshContext& context = global::MeshContext::of(mesh);
      context.scores = 0;
      reset_traffic(mesh);
      const at::Tensor output = at::scaled_dot_product_attention(
          inputs[0].transpose(1, 2), inputs[1].transpose(1, 2), inputs[2].transpose(1, 2), {}, 0.0,
          true, std::nullopt, true);
      EXPECT_EQ(traffic(mesh).messages, n > 1 ? n - 1 : 0);
      EXPECT_EQ(traffic(mesh).bytes, (n - 1) * part);
      EXPECT_EQ(traffic(mesh).calls(), traffic(mesh).messages);
      const std::int64_t pairs = one.rows * one.heads * tokens * (tokens + 1) / 2;
      if (cut.is_zigzag() && n > 1) EXPECT_EQ(context.scores, pairs / n);
      const at::Tensor of =
          distribute(at::ones(output.sizes()), mesh, {Shard(2).zigzag(cut.is_zigzag())});
      reset_traffic(mesh);
      output.backward(of);
      EXPECT_EQ(traffic(mesh).messages, n > 1 ? 2 * n - 1 : 0);
      EXPECT_EQ(traffic(mesh).bytes, n > 1 ? (2 * n - 1) * part : 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RingOfRanks,
                         testing::Values(std::tuple(test::BackendKind::local, 1),
                                         std::tuple(test::BackendKind::local, 2),
                                         std::tuple(test::BackendKind::local, 3),
                                         std::tuple(test::BackendKind::local, 4),
                                         std::tuple(test::BackendKind::local, 5),
                                         std::tuple(test::BackendKind::shm, 2),
                                         std::tuple(test::BackendKind::shm, 3)),
                         test::backend_test_name);

}  // namespace
}  // namespace lockstep
