// out= tensors of other sizes than the operands, and of operations for which rules make kernels.
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::numbers;
using test::Put;

const std::vector<Placement> of_rows = {Shard(0), Shard(1), Replicate()};

at::Tensor waves(at::IntArrayRef sizes) { return numbers(sizes).sin(); }

TEST(OutArguments, OfAnotherSizeThanTheOperand) {
  for (const Placement& cut : of_rows)
    for (const Placement& of_out : of_rows)
      expect_as_plain({2}, [&](const Put& put) {
        at::Tensor x = put(waves({4, 64}), {cut});
        at::Tensor values = put(at::zeros({4, 2}), {of_out});
        at::Tensor places = put(at::zeros({4, 2}, at::kLong), {of_out});
        at::topk_out(values, places, x, 2, 1);
        at::Tensor rows = put(at::zeros({2, 64}), {of_out});
        at::index_select_out(rows, x, 0, put(at::tensor({3, 1}), {Replicate()}));
        return at::cat({values.view({-1}), places.to(at::kFloat).view({-1}), rows.view({-1})});
      });
}

TEST(OutArguments, OfOperationsWithKernelsOfRules) {
  for (const Placement& cut : of_rows)
    for (const Placement& of_out : of_rows)
      expect_as_plain({2}, [&](const Put& put) {
        at::Tensor x = put(waves({4, 6}), {cut}), y = put(waves({4, 6}).cos(), {cut});
        at::Tensor soft = put(at::zeros({4, 6}), {of_out});
        at::_softmax_out(soft, x, 1, false);
        at::Tensor norm = put(at::zeros({4}), {of_out.is_shard() ? Shard(0) : of_out});
        at::linalg_vector_norm_out(norm, x, 3, at::IntArrayRef{1});
        at::Tensor loss = put(at::zeros({}), {Replicate()});
        at::mse_loss_out(loss, x, y);
        return at::cat({soft.view({-1}), norm, loss.view({1})});
      });
}

// One column on two ranks: the parts of a rank may have equal sizes under both placements.
TEST(OutArguments, OfFewerColumnsThanRanks) {
  for (const Placement& cut : of_rows)
    for (const Placement& of_out : of_rows)
      expect_as_plain({2}, [&](const Put& put) {
        at::Tensor x = put(waves({4, 1}), {cut}), rows = put(at::zeros({2, 1}), {of_out});
        at::index_select_out(rows, x, 0, put(at::tensor({3, 1}), {Replicate()}));
        return rows;
      });
}

TEST(OutArguments, OfRandomOperationsCompareGenerators) {
  expect_as_plain({2}, [&](const Put& put) {
    at::Tensor p = put(at::full({4, 6}, 0.5F), {Shard(0)}),
               drawn = put(at::zeros({4, 6}), {Shard(0)});
    at::Generator generator = at::detail::createCPUGenerator(7);
    at::bernoulli_out(drawn, p, generator);
    return drawn;
  });
}

}  // namespace
}  // namespace lockstep
