// Numeric derivatives over all ranks, in double precision: the reference for the differentiable
// collectives. Collective: every rank must call.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/comm/local.h>

#include "support/torch/ranks.h"
#include "support/torch/values.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/autograd.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace lockstep::test {

// A scalar loss of this rank as a function of this rank's input.
using RankLoss = std::function<at::Tensor(Group, const at::Tensor& input)>;

enum class Convention {
  summed,            // each rank has its own input; the objective is the sum of the ranks' losses
  replicated_input,  // all ranks share one input; the objective is the sum of the losses
  replicated_loss,   // each rank has its own input; all compute the same loss, which counts once
  replicated         // all ranks share one input and compute the same loss
};

inline bool has_one_input(Convention convention) {
  return convention == Convention::replicated_input || convention == Convention::replicated;
}

inline bool has_one_loss(Convention convention) {
  return convention == Convention::replicated_loss || convention == Convention::replicated;
}

// Like run_group(), but ranks that are threads run in a forked process. Once autograd's engine has
// threads for a device (staged_backend_test.cc adds one), it cannot be used in a fork of its
// process.
inline void run_apart(BackendKind backend, int size, const GroupBody& body,
                      Duration timeout = std::chrono::seconds(20)) {
  if (backend != BackendKind::local) return run_group(backend, size, body, timeout);
  expect_ranks(1, [&](int) { run_as_threads(size, body, timeout); });
}

// Views complex numbers as pairs of reals.
inline at::Tensor as_reals(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

// Returns a smooth nonlinear scalar of `result`; each `salt` gives a different function.
inline at::Tensor some_loss(const at::Tensor& result, int salt) {
  auto reals = as_reals(result);
  auto weights = values(salt, reals.numel(), at::kDouble, 7).view(reals.sizes());
  return (weights * (reals + reals * reals / 2 + reals * reals * reals / 6)).sum();
}

class NumericGradient {
 public:
  NumericGradient(Group group, const at::Tensor& input, const RankLoss& loss, Convention convention)
      : group_(group), input_(input.detach().contiguous()), loss_(loss), convention_(convention) {}

  // Returns the derivatives with respect to this rank's input, flattened.
  std::vector<double> compute() {
    std::vector<double> mine;
    auto lengths = at::full({group_.size()}, std::int64_t{0}, at::kLong);
    group_.all_gather(lengths, at::full({1}, as_reals(input_).numel(), at::kLong)).wait();
    for (int rank = 0; rank < (has_one_input(convention_) ? 1 : group_.size()); ++rank) {
      bool moves = has_one_input(convention_) || rank == group_.rank();
      for (std::int64_t i = 0; i < lengths[rank].item<std::int64_t>(); ++i) {
        double slope = (objective(moves, i, step) - objective(moves, i, -step)) / (2 * step);
        if (moves) mine.push_back(slope);
      }
    }
    return mine;
  }

 private:
  static constexpr double step = 1e-5;

  double objective(bool moves, std::int64_t index, double by) {
    auto input = input_.clone();
    if (moves) as_reals(input).view({-1})[index].add_(by);
    auto loss = loss_(group_, input.requires_grad_()).detach().to(at::kDouble).clone();
    auto op = has_one_loss(convention_) ? Op::average : Op::sum;
    group_.all_reduce(loss, op).wait();
    return loss.item<double>();
  }

  Group group_;
  at::Tensor input_;
  const RankLoss& loss_;
  Convention convention_;
};

// Compares input.grad after loss.backward() with central differences, element by element. `input`
// is double or complex double. Its size may differ between ranks, unless it is replicated: then it
// must be the same on all ranks.
inline void check_gradient(Group group, const at::Tensor& input, const RankLoss& loss,
                           Convention convention = Convention::summed) {
  auto leaf = input.detach().clone().requires_grad_();
  loss(group, leaf).backward();
  auto expected = NumericGradient(group, input, loss, convention).compute();
  ASSERT_TRUE(leaf.grad().defined());
  ASSERT_EQ(leaf.grad().sizes(), input.sizes());
  auto found = as_reals(leaf.grad()).contiguous().view({-1});
  ASSERT_EQ(found.numel(), std::ssize(expected));
  for (std::int64_t i = 0; i < found.numel(); ++i) {
    double tolerance = 1e-6 * (1 + std::abs(expected[i]));
    EXPECT_NEAR(found[i].item<double>(), expected[i], tolerance) << "number " << i;
  }
}

// Does the same for the derivative of a random combination of the gradient's elements. If the input
// is replicated, so are its gradient and the combination.
inline void check_second_gradient(Group group, const at::Tensor& input, const RankLoss& loss,
                                  Convention convention = Convention::summed) {
  bool replicated = has_one_input(convention);
  RankLoss of_gradient = [&](Group ranks, const at::Tensor& at_input) {
    auto value = loss(ranks, at_input);
    auto gradient = torch::autograd::grad({value}, {at_input}, {}, true, true)[0];
    auto reals = as_reals(gradient);
    auto weights = values(replicated ? 0 : ranks.rank(), reals.numel(), at::kDouble, 9);
    return (weights.view(reals.sizes()) * reals).sum();
  };
  check_gradient(group, input, of_gradient,
                 replicated ? Convention::replicated : Convention::summed);
}

}  // namespace lockstep::test
