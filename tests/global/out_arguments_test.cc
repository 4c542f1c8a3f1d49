// out= tensors of other sizes than the operands, and of operations for which rules make kernels.
#include "support/messages.h"
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::expect_words;
using test::message_of;
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

TEST(OutArguments, LikeAPartialTensor) {
  for (const Placement& of_out : of_rows)
    expect_as_plain({2}, [&](const Put& put) {
      at::Tensor x = put(waves({4, 6}), {Partial()}), zeros = put(waves({4, 6}), {of_out}),
                 ones = put(waves({4, 6}), {of_out}), fives = put(waves({4, 6}), {of_out}),
                 any = put(waves({4, 6}), {of_out});
      at::zeros_like_out(zeros, x);
      at::ones_like_out(ones, x);
      at::full_like_out(fives, x, 5);
      at::empty_like_out(any, x);
      return at::cat({zeros, ones, fives, any.zero_()});
    });
}

TEST(OutArguments, OfANumberAndAPartialTensor) {
  for (const Placement& of_out : {Placement(Partial()), Placement(Shard(0))})
    expect_as_plain({2}, [&](const Put& put) {
      at::Tensor x = put(waves({4, 6}), {Partial()}), y = put(waves({4, 6}), {Replicate()}),
                 added = put(waves({4, 6}), {of_out}), less = put(waves({4, 6}), {of_out}),
                 twice = put(waves({4, 6}), {of_out});
      at::add_out(added, x, 1.5);
      at::sub_out(less, x, 1.5);
      at::mul_out(twice, y, 2.0);
      at::add_out(x, x, 1.5);
      return at::cat({added, less, twice, x});
    });
}

TEST(OutArguments, OfCat) {
  for (const Placement& cut : of_rows)
    for (const Placement& of_out : of_rows)
      expect_as_plain({2}, [&](const Put& put) {
        at::Tensor x = put(waves({4, 6}), {cut}), y = put(waves({4, 6}).cos(), {cut}),
                   less = put(waves({2, 6}), {cut});
        at::Tensor long_one = put(at::zeros({8, 6}), {of_out}),
                   shorter = put(at::zeros({6, 6}), {of_out}),
                   wide = put(at::zeros({4, 12}), {of_out});
        at::cat_out(long_one, {x, y});
        at::cat_out(shorter, {x, less});
        at::cat_out(wide, {x, y}, 1);
        return at::cat({long_one.view({-1}), shorter.view({-1}), wide.view({-1})});
      });
}

TEST(OutArguments, OfCatHaveTheSizesOfTheResult) {
  run_as_threads(2, [](Group world) {
    Mesh mesh = test::mesh_of_ranks(world, {2});
    at::Tensor x = distribute(waves({4, 6}), mesh, {Shard(0)});
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{0}, {4, 6}, {9, 6}}) {
      at::Tensor out = distribute(at::zeros(sizes), mesh, {Replicate()});
      expect_words(message_of<InvalidArgument>([&] {
                     at::cat_out(out, {x, x});
                   }),
                   {"aten::cat", "[8, 6] to write to"});
    }
    at::Tensor out = distribute(at::zeros({8, 6}), mesh, {Shard(0)});
    at::Tensor narrow = distribute(waves({4, 5}), mesh, {Shard(0)});
    expect_words(message_of<InvalidArgument>([&] {
                   at::cat_out(out, {x, narrow});
                 }),
                 {"aten::cat", "all dims but dim 0", "[4, 6]", "[4, 5]"});
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
