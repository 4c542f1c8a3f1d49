// Helpers for the tests of matrix products.
#pragma once

#include "matmul/matmul.h"

#include <gtest/gtest.h>

#include <ATen/ops/randn.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::test {

// Switches oneDNN on or off during the object's lifetime, and off afterwards.
class Chosen {
 public:
  explicit Chosen(bool onednn) { matmul::choose(onednn); }
  ~Chosen() { matmul::choose(false); }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;
};

template <class Make>
auto by(bool onednn, const Make& make) {
  const Chosen chosen(onednn);
  return make();
}

// Returns the number of products that oneDNN computes in `action`.
inline std::uint64_t onednn_products_of(const std::function<void()>& action) {
  const auto before = matmul::onednn_products();
  action();
  return matmul::onednn_products() - before;
}

// Returns a matrix, or a batch of matrices, stored by row or by column.
inline at::Tensor random_matrix(std::vector<std::int64_t> sizes, bool by_columns) {
  if (by_columns) std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  const at::Tensor made = at::randn(sizes);
  return by_columns ? made.transpose(-1, -2) : made;
}

}  // namespace lockstep::test

// Skips the test if oneDNN cannot be used with this LibTorch or on this processor.
#define LOCKSTEP_NEEDS_ONEDNN() \
  if (!lockstep::matmul::onednn::missing().empty()) GTEST_SKIP() << matmul::onednn::missing()

// Skips the test unless oneDNN is the default here: the property was only observed for these
// kernels.
#define LOCKSTEP_NEEDS_ONEDNN_BY_DEFAULT() \
  LOCKSTEP_NEEDS_ONEDNN();                 \
  if (!lockstep::matmul::mkl_takes_narrow_way()) GTEST_SKIP() << "MKL multiplies here by default"
