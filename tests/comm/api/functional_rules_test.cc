// Properties of the differentiable collectives other than gradients: values, copies, what autograd
// records, and how backward calls match across ranks.
#include <lockstep/comm/functional.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/local.h>

#include "comm/api/gradient_check.h"
#include "support/messages.h"
#include "support/torch/backend_test.h"
#include "support/torch/values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;
using test::values;

namespace {

class Functional : public test::BackendTest {
 protected:
  void run(const test::GroupBody& body) { test::run_apart(backend(), size(), body); }
};

// Row i of rank r is 10 * r + i, so every row has a different value.
at::Tensor rows_of(int rank, std::int64_t rows) {
  return (at::arange(rows, at::kDouble) + 10.0 * rank)
      .view({rows, 1})
      .expand({rows, 2})
      .contiguous();
}

TEST_P(Functional, ResultsAreNewAndTheInputIsLeftAlone) {
  run([](Group group) {
    int size = group.size(), rank = group.rank();
    auto input = rows_of(rank, size);
    auto before = input.clone();
    std::vector<at::Tensor> all;
    for (int peer = 0; peer < size; ++peer) all.push_back(rows_of(peer, size));

    auto expect = [&](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_TRUE(found.equal(expected)) << "expected\n" << expected << "\nfound\n" << found;
      EXPECT_TRUE(found.is_contiguous() && !found.is_alias_of(input) && !found.requires_grad());
      EXPECT_TRUE(input.equal(before));
    };
    auto sum = at::stack(all).sum(0);
    expect(all_reduce(input, group), sum);
    expect(all_reduce(input, group, Op::max), all.back());
    expect(all_reduce(input, group, Op::min), all.front());
    expect(reduce_from(input, group), sum);
    expect(reduce(input, group), rank == 0 ? sum : at::zeros_like(sum));
    expect(broadcast(input, group, size - 1), all.back());
    expect(all_gather(input, group), at::cat(all));
    expect(all_gather(input, group, 1), at::cat(all, 1));
    expect(reduce_scatter(input, group), sum.narrow(0, rank, 1));
    std::vector<at::Tensor> mine, columns;
    for (const auto& peer : all) mine.push_back(peer.narrow(0, rank, 1));
    expect(all_to_all(input, group), at::cat(mine));
    expect(all_to_all(input, group, 0, 1), at::cat(mine, 1));
    EXPECT_TRUE(copy_to(input, group).equal(before));
  });
}

TEST_P(Functional, IntegersAreNotRecorded) {
  run([](Group group) {
    auto bits = at::full({3}, std::int64_t{1} << group.rank(), at::kLong);
    auto all = all_reduce(bits, group, Op::bor);
    EXPECT_EQ(all[2].item<std::int64_t>(), (std::int64_t{1} << group.size()) - 1);
    EXPECT_FALSE(all.requires_grad());
    auto parameter = at::ones({3}).requires_grad_();
    at::NoGradGuard no_grad;
    EXPECT_FALSE(all_gather(parameter, group).requires_grad());
  });
}

// A group's collectives are no functions of autograd, but it notices their writes.
TEST_P(Functional, BackwardRefusesValuesThatAGroupHasOverwritten) {
  run([](Group group) {
    auto x = at::ones({3}).requires_grad_();
    auto y = at::sigmoid(x);  // its backward() uses the result
    group.all_reduce(y.detach()).wait();
    test::expect_words(test::message_of<c10::Error>([&] { y.sum().backward(); }),
                       {"modified by an inplace operation"});
  });
}

TEST_P(Functional, ATensorParallelBlockIsTheWholeBlock) {
  run([](Group group) {
    int size = group.size(), rank = group.rank();
    auto x = values(90, 12, at::kDouble).view({3, 4});
    auto a = values(91, 4 * 2 * size, at::kDouble).view({4, 2 * size});
    auto b = values(92, 2 * size * 4, at::kDouble).view({2 * size, 4});

    auto whole_x = x.clone().requires_grad_(), whole_a = a.clone().requires_grad_();
    auto expected = at::gelu(whole_x.matmul(whole_a)).matmul(b);
    (expected * expected).sum().backward();

    auto my_x = x.clone().requires_grad_();
    auto my_a = a.narrow(1, 2 * rank, 2).clone().requires_grad_();
    auto my_b = b.narrow(0, 2 * rank, 2);
    auto inside = at::gelu(copy_to(my_x, group).matmul(my_a)).matmul(my_b);
    auto found = reduce_from(inside, group);
    (found * found).sum().backward();
    EXPECT_TRUE(found.allclose(expected));
    EXPECT_TRUE(my_x.grad().allclose(whole_x.grad()));
    EXPECT_TRUE(my_a.grad().allclose(whole_a.grad().narrow(1, 2 * rank, 2)));
  });
}

// The ranks' graphs differ, but the order of their forward calls is the same. The order of their
// backward calls must be the same, too; otherwise the tags would not match.
TEST_P(Functional, BackwardCallsComeInReverseOrderWhateverIsBetween) {
  run([](Group group) {
    std::mt19937 random(group.rank() + 1);
    for (int round = 0; round < 10; ++round) {
      auto x = values(group.rank(), 6, at::kDouble).requires_grad_();
      std::vector<at::Tensor> results;
      for (const char* tag : {"one", "two", "three", "four", "five"}) {
        auto input = x;
        for (auto i = random() % 4; i > 0; --i) input = input.sin();
        if (!results.empty() && random() % 2) input = input * results.back();
        results.push_back(all_reduce(input, group, Op::sum, {.tag = tag}));
      }
      std::shuffle(results.begin(), results.end(), random);
      auto loss = at::zeros({}, at::kDouble);
      for (auto& result : results) {
        for (auto i = random() % 4; i > 0; --i) result = result.cos();
        loss = random() % 2 ? loss + result.sum() : result.sum() + loss;
      }
      loss.backward();
      EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    }
  });
}

TEST_P(Functional, ARankThatDoesNotUseAResultTiesItIn) {
  run([](Group group) {
    auto x = at::full({3}, 2.0, at::kDouble).requires_grad_();
    auto used = all_reduce(x, group), unused = all_gather(x, group);
    auto own = (x * x).sum();
    auto loss = group.is_root() ? own + (used * used).sum() + unused.sum()
                                : with_backward_of(own, {used.relu(), unused});
    loss.backward();
    double expected = 4 + 2 * 2.0 * group.size() + 1;
    EXPECT_TRUE(x.grad().allclose(at::full({3}, expected, at::kDouble))) << x.grad();
    EXPECT_TRUE(with_backward_of(own, {}).is_same(own));
  });
}

TEST_P(Functional, AGradientThatIsUndefinedCountsAsZeros) {
  run([](Group group) {
    auto x = at::ones({2}, at::kDouble).requires_grad_();
    auto result = all_reduce(x, group);
    with_backward_of(x.sum(), {result}).backward();
    EXPECT_TRUE(x.grad().equal(at::ones({2}, at::kDouble)));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Functional, test::every_backend({1, 3}),
                         test::backend_test_name);

class FunctionalMismatch : public testing::TestWithParam<test::BackendKind> {};

TEST_P(FunctionalMismatch, AnInputThatRequiresGradOnSomeRanksOnlyIsNamed) {
  test::run_apart(GetParam(), 2, [](Group group) {
    auto x = at::ones({3}).requires_grad_(group.is_root());
    auto text = test::message_of<Mismatch>([&] { (void)broadcast(x, group); });
    test::expect_words(text, {"broadcast", "differentiable", "functional_rules_test.cc"});
  });
}

TEST_P(FunctionalMismatch, AResultThatOneRankDoesNotUseIsNamedAtTheDeadline) {
  test::run_apart(
      GetParam(), 2,
      [](Group group) {
        auto x = at::ones({3}).requires_grad_();
        auto result = all_reduce(x, group, Op::sum, {.tag = "logits"});
        if (!group.is_root()) {
          std::this_thread::sleep_for(1200ms);
          return;
        }
        auto text = test::message_of<Timeout>([&] { result.sum().backward(); });
        test::expect_words(text, {"all_reduce", "backward of logits"});
      },
      500ms);
}

INSTANTIATE_TEST_SUITE_P(Backends, FunctionalMismatch, testing::ValuesIn(test::backends()));

std::string refusal(const std::function<void(Group)>& call) {
  std::string text;
  run_as_threads(
      1, [&](Group group) { text = test::message_of<InvalidArgument>([&] { call(group); }); });
  return text;
}

TEST(FunctionalArguments, AreRefusedInWords) {
  auto x = at::ones({4, 3});
  auto of_two = [&](auto call) {
    auto groups = local_groups(2);
    return test::message_of<InvalidArgument>([&] { call(groups[0]); });
  };
  EXPECT_EQ(refusal([](Group g) { (void)all_reduce({}, g); }),
            "all_reduce: the input is undefined");
  EXPECT_EQ(refusal([&](Group g) { (void)all_gather(x, g, 2); }),
            "all_gather: expected a dim from -2 to 1, found 2");
  EXPECT_EQ(refusal([&](Group g) { (void)all_gather(x.sum(), g); }),
            "all_gather: expected a tensor with dims, found a scalar; unsqueeze(0) makes one");
  EXPECT_EQ(refusal([&](Group g) { (void)broadcast(x, g, 1); }),
            "broadcast: expected a root from 0 to 0, found 1");
  test::expect_words(refusal([&](Group g) { (void)reduce_scatter(x, g, 0, Op::max); }),
                     {"expected sum or average, found max"});
  test::expect_words(of_two([&](Group g) { (void)reduce_scatter(x, g, 1); }),
                     {"expected dim 1 to be divisible by the number of ranks, 2, found size 3"});
  test::expect_words(of_two([&](Group g) { (void)all_to_all(x, g, 1); }), {"pass sizes"});
  std::vector<std::int64_t> one{4}, wrong{3, 3}, negative{5, -1};
  test::expect_words(of_two([&](Group g) { (void)all_gather(x, g, one); }),
                     {"as many sizes as ranks, 2, found 1"});
  test::expect_words(of_two([&](Group g) { (void)reduce_scatter(x, g, wrong); }),
                     {"expected size 6 in dim 0, found 4"});
  test::expect_words(of_two([&](Group g) { (void)all_to_all(x, g, wrong, negative); }),
                     {"not negative, found -1"});
}

}  // namespace
