// What the tests of products share.
#pragma once

#include "matmul/matmul.h"
#include "matmul/onednn.h"

#include <gtest/gtest.h>

#include <ATen/ops/randn.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::test {

// oneDNN or LibTorch's own while it lives, and LibTorch's own afterwards.
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

// How many products oneDNN computed in `action`.
inline std::uint64_t onednn_products_of(const std::function<void()>& action) {
  const auto before = matmul::onednn_products();
  action();
  return matmul::onednn_products() - before;
}

// A matrix, or a batch of them, that lies by rows or by columns.
inline at::Tensor random_matrix(std::vector<std::int64_t> sizes, bool by_columns) {
  if (by_columns) std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  const at::Tensor made = at::randn(sizes);
  return by_columns ? made.transpose(-1, -2) : made;
}

}  // namespace lockstep::test

// Where this LibTorch or this processor has no products of oneDNN's that we use.
#define LOCKSTEP_NEEDS_ONEDNN() \
  if (!lockstep::matmul::onednn::missing().empty()) GTEST_SKIP() << matmul::onednn::missing()

// What was seen of the kernels that are chosen there by default, and is promised of no others.
#define LOCKSTEP_NEEDS_ONEDNN_BY_DEFAULT() \
  LOCKSTEP_NEEDS_ONEDNN();                 \
  if (!lockstep::matmul::mkl_takes_narrow_way()) GTEST_SKIP() << "MKL multiplies here by default"
