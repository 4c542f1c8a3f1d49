#include "parallel/bucket.h"
#include "module/tensors.h"
#include "parallel/support.h"

#include <lockstep/comm/group.h>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

namespace lockstep::parallel {
namespace {

Bucket two_tensor_bucket(c10::ScalarType dtype = c10::kFloat) {
  layout::Dtype elements = modules::spec_of(dtype);
  std::vector<layout::TensorSpec> specs = {{"a", {2, 3}, elements}, {"b", {4}, elements}};
  return Bucket(Group(), layout::FlatLayout(specs, {.alignment = 32}), dtype, c10::kCPU,
                "bucket 0 (a ... b)");
}

TEST(Bucket, BeginsWithZerosAndViewsShareItsMemory) {
  Bucket bucket = two_tensor_bucket();
  EXPECT_EQ(bucket.flat().numel(), 12);
  EXPECT_EQ(bucket.flat().count_nonzero().item<std::int64_t>(), 0);
  bucket.view(1).fill_(7);
  EXPECT_EQ(bucket.flat()[8].item<float>(), 7);
  EXPECT_EQ(bucket.flat().sum().item<float>(), 28);
}

TEST(Bucket, ViewsCanBeGradients) {
  Bucket bucket = two_tensor_bucket();
  at::Tensor parameter = at::zeros({2, 3}).requires_grad_();
  parameter.mutable_grad() = bucket.view(0, parameter);
  (parameter * 3).sum().backward();
  EXPECT_TRUE(bucket.holds(0, parameter.grad(), parameter));
  EXPECT_EQ(bucket.flat().sum().item<float>(), 18);
  torch::optim::SGD sgd({parameter}, 0.1);
  sgd.zero_grad(/*set_to_none=*/false);  // throws on views that autograd tracks
  EXPECT_TRUE(bucket.holds(0, parameter.grad(), parameter));
  EXPECT_EQ(bucket.flat().sum().item<float>(), 0);
}

TEST(Bucket, ViewsTakeTheStridesOfADenseParameter) {
  Bucket bucket = two_tensor_bucket();
  at::Tensor transposed = at::zeros({3, 2}).t();
  EXPECT_EQ(bucket.view(0, transposed).strides(), transposed.strides());
  at::Tensor with_holes = at::zeros({2, 6}).slice(1, 0, 6, 2);
  EXPECT_TRUE(bucket.view(0, with_holes).is_contiguous());
}

TEST(Bucket, TellsItsOwnViewsFromOthers) {
  Bucket bucket = two_tensor_bucket();
  at::Tensor like = at::zeros({2, 3});
  EXPECT_TRUE(bucket.holds(0, bucket.view(0), like));
  EXPECT_FALSE(bucket.holds(0, at::Tensor(), like));
  EXPECT_FALSE(bucket.holds(0, bucket.view(0).clone(), like));
  EXPECT_FALSE(bucket.holds(0, bucket.view(1), like));
  EXPECT_FALSE(bucket.holds(0, bucket.view(0).view({3, 2}), like));
  EXPECT_FALSE(bucket.holds(0, bucket.view(0), at::zeros({3, 2}).t()));
  EXPECT_FALSE(bucket.holds(0, two_tensor_bucket().view(0), like));
  EXPECT_FALSE(bucket.holds(1, at::zeros({4}).to_sparse(), at::zeros({4})));
}

TEST(Bucket, ComplexNumbersAreReducedAsPairs) {
  Bucket bucket = two_tensor_bucket(c10::kComplexFloat);
  bucket.view(1).fill_(c10::complex<float>(1, 2));
  EXPECT_EQ(bucket.reducible().scalar_type(), c10::kFloat);
  EXPECT_EQ(bucket.reducible().sum().item<float>(), 12);
}

TEST(Bucket, ItsMemoryOutlivesIt) {
  at::Tensor view;
  {
    Bucket bucket = two_tensor_bucket();
    view = bucket.view(1);
    view.fill_(3);
  }
  EXPECT_EQ(view.sum().item<float>(), 12);
}

}  // namespace
}  // namespace lockstep::parallel

namespace lockstep {
namespace {

using namespace test;

// Two alternating dtypes, an empty tensor, a scalar, and a non-contiguous tensor.
std::vector<at::Tensor> state(int seed) {
  return {values({7, 3}, seed),         at::full({}, seed, at::kLong), values({0}, seed),
          values({4, 5}, seed + 1).t(), at::arange(9) * (seed + 1),    values({33}, seed + 2)};
}

void expect_state_of_root(const std::vector<at::Tensor>& tensors, int seed) {
  auto expected = state(seed);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(same_bits(tensors[i], expected[i])) << "tensor " << i;
}

class StateBroadcast : public testing::TestWithParam<BackendRanks> {};

TEST_P(StateBroadcast, GivesEveryRankTheValuesOfRankZero) {
  for (std::int64_t bucket_bytes : {1, 100, 1 << 20}) {
    run_group(GetParam().backend, GetParam().size, [&](Group group) {
      auto tensors = state(group.rank());
      parallel::broadcast_now(group, tensors, bucket_bytes);
      expect_state_of_root(tensors, 0);
      parallel::broadcast_now(group, {}, bucket_bytes);
    });
  }
}

TEST_P(StateBroadcast, SendsWhatRankZeroHasAtEachPost) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    auto tensors = state(group.rank());
    parallel::StateBroadcast broadcast(group, tensors);
    for (int round = 0; round < 3; ++round) {
      auto now = state(10 * round + group.rank());
      for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(now[i]);
      broadcast.post(std::nullopt);
      broadcast.finish();
      expect_state_of_root(tensors, 10 * round);
    }
  });
}

TEST_P(StateBroadcast, FollowsAChangeOfDtype) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    at::Tensor tensor = at::full({3}, group.rank());
    parallel::StateBroadcast broadcast(group, {tensor});
    tensor.set_data(at::full({5}, group.rank() + 0.1, at::kDouble));
    broadcast.post(std::nullopt);
    broadcast.finish();
    EXPECT_TRUE(same_bits(tensor, at::full({5}, 0.1, at::kDouble)));
  });
}

TEST_P(StateBroadcast, LeavesVersionsAlone) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    at::Tensor tensor = at::full({3}, group.rank());
    auto version = tensor._version();
    parallel::StateBroadcast broadcast(group, {tensor});
    broadcast.post(std::nullopt);
    broadcast.finish();
    EXPECT_EQ(tensor._version(), version);
  });
}

INSTANTIATE_TEST_SUITE_P(All, StateBroadcast, testing::ValuesIn(usual_ranks()), name_of_ranks);

}  // namespace
}  // namespace lockstep
