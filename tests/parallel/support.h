// Helpers for the tests of the strategies: small models, batches that every rank can compute, and
// the one-process reference.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/local.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/mlp.h>

#include "support/torch/ranks.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <bit>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

// A backend and a number of ranks, as the parameter of test suites.
struct BackendRanks {
  BackendKind backend = BackendKind::local;
  int size = 1;
};

inline void PrintTo(const BackendRanks& ranks, std::ostream* out) {
  *out << ranks.size << " on " << name_of(ranks.backend);
}

inline std::string name_of_ranks(const testing::TestParamInfo<BackendRanks>& info) {
  return std::string(name_of(info.param.backend)) + std::to_string(info.param.size);
}

inline std::vector<BackendRanks> ranks_of(std::vector<BackendKind> backends,
                                          std::vector<int> sizes) {
  std::vector<BackendRanks> all;
  for (BackendKind backend : backends)
    for (int size : sizes) all.push_back({backend, size});
  return all;
}

// 1, 2 and 5 ranks as threads, and 3 as processes. Other combinations differ only in the
// collectives, which tests/comm compares on each backend.
inline std::vector<BackendRanks> usual_ranks() {
  return {{BackendKind::local, 1},
          {BackendKind::local, 2},
          {BackendKind::local, 5},
          {BackendKind::shm, 3}};
}

// Returns pseudo-random values, the same in any process, in C++ and in Python; exact in float.
inline at::Tensor values(at::IntArrayRef sizes, std::int64_t seed) {
  at::Tensor numbers = at::arange(c10::multiply_integers(sizes), at::kLong);
  return (((numbers * 7919 + seed * 104729 + 17) % 2003).to(at::kFloat) / 2048 - 0.5)
      .reshape(sizes);
}

inline void fill_parameters(torch::nn::Module& module, std::int64_t seed) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters())
    parameter.copy_(values(parameter.sizes(), seed++) * 0.5);
}

// Convolutions, a batch norm (with buffers, one of them int64), and a frozen parameter.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(4 * 4 * 4, 10));
    frozen = register_parameter("frozen", torch::ones({5}), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = torch::relu(norm(conv(images.view({-1, 1, 6, 6}))));
    return fc(x.flatten(1)) + frozen.sum();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
  at::Tensor frozen;
};
TORCH_MODULE(ConvNet);

// Three layers; forward() uses the requested ones.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (const char* name : {"a", "b", "c"})
      layers.push_back(register_module(name, torch::nn::Linear(3, 3)));
    fill_parameters(*this, 1);
  }
  at::Tensor forward(at::Tensor x, const std::string& names) {
    for (char name : names) x = layers[static_cast<std::size_t>(name - 'a')](x);
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Branches);

inline at::Tensor image_loss(at::Tensor logits) {
  return torch::nn::functional::cross_entropy(logits,
                                              at::arange(logits.size(0)).remainder(logits.size(1)));
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  auto bytes = [](const at::Tensor& tensor) {
    return tensor.detach().contiguous().view({-1}).view(at::kByte);
  };
  return at::equal(bytes(a), bytes(b));
}

// The balanced tree over ranks, implemented a second time to specify the order of sums
// independently.
inline at::Tensor tree_sum(const std::vector<at::Tensor>& values, std::size_t low,
                           std::size_t high) {
  if (high - low == 1) return values[low];
  std::size_t left = std::bit_floor(high - low - 1);
  return tree_sum(values, low, low + left) + tree_sum(values, low + left, high);
}

inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    gradients.push_back(parameter.grad().defined() ? parameter.grad().detach().clone()
                                                   : at::Tensor());
  return gradients;
}

// The result of one process: each rank's gradients separately, summed in the order of the tree,
// divided once. `gradients[rank]` are those of one rank.
inline std::vector<at::Tensor> average(const std::vector<std::vector<at::Tensor>>& gradients) {
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < gradients.front().size(); ++i) {
    std::vector<at::Tensor> of_ranks;
    for (const auto& one : gradients) of_ranks.push_back(one[i]);
    result.push_back(of_ranks.size() == 1 ? of_ranks[0]
                                          : tree_sum(of_ranks, 0, of_ranks.size()) /
                                                static_cast<double>(of_ranks.size()));
  }
  return result;
}

// Returns the message of the Expected that `action` throws, or "" if it throws nothing. Fails the
// test if it throws an error of another type.
template <typename Expected>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return error.what();
  }
  return "";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos)
      << "found: " << text << "\nexpected in it: " << part;
}

}  // namespace lockstep::test
