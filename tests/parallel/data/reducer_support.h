// Helpers for the tests of the reduction: the gradients of all ranks, computed in one process.
#pragma once

#include "parallel/support.h"

#include <lockstep/base/error.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

inline at::Tensor input(std::int64_t seed) { return values({2, 3}, seed); }

// The gradients that `path(rank)` produces in one process, averaged over `ranks` by hand.
// Parameters that no rank used are undefined; for ranks that did not use a parameter, its gradient
// is zero.
inline std::vector<at::Tensor> expected_average(int ranks,
                                                const std::function<std::string(int)>& path) {
  std::vector<std::vector<at::Tensor>> of_ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    Branches model;
    model->forward(input(rank), path(rank)).sum().backward();
    of_ranks.push_back(gradients_of(model->parameters()));
  }
  for (std::size_t i = 0; i < of_ranks.front().size(); ++i) {
    at::Tensor like;
    for (auto& one : of_ranks) like = one[i].defined() ? one[i] : like;
    for (auto& one : of_ranks)
      one[i] = one[i].defined() || !like.defined() ? one[i] : at::zeros_like(like);
  }
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < of_ranks.front().size(); ++i) {
    std::vector<std::vector<at::Tensor>> column;
    for (auto& one : of_ranks) column.push_back({one[i]});
    result.push_back(column[0][0].defined() ? average(column)[0] : at::Tensor());
  }
  return result;
}

inline void expect_gradients(torch::nn::Module& model, const std::vector<at::Tensor>& expected,
                             const std::string& where = "") {
  std::size_t i = 0;
  for (const auto& item : model.named_parameters()) {
    at::Tensor gradient = item.value().grad();
    ASSERT_EQ(gradient.defined(), expected[i].defined()) << where << " " << item.key();
    if (gradient.defined())
      EXPECT_TRUE(same_bits(gradient, expected[i]))
          << where << " " << item.key() << gradient << expected[i];
    ++i;
  }
}

}  // namespace lockstep::test
