#include "parallel/bucket.h"

#include "module/tensors.h"

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
