// Compares the gradients of the differentiable collectives with numeric ones, on several backends.
#include <lockstep/comm/functional.h>

#include "comm/api/gradient_check.h"
#include "support/torch/backend_test.h"
#include "support/torch/values.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

using namespace lockstep;
using test::check_gradient;
using test::check_second_gradient;
using test::Convention;
using test::some_loss;
using test::values;

namespace {

using CollectiveFunction = std::function<at::Tensor(Group, const at::Tensor&)>;

// One collective, and the size of each rank's input.
struct Case {
  std::string name;
  std::function<std::vector<std::int64_t>(Group)> sizes;
  CollectiveFunction result;
  at::ScalarType dtype = at::kDouble;
};

auto fixed(std::vector<std::int64_t> sizes) {
  return [sizes](Group) { return sizes; };
}

// Sizes in which `dim` is divisible by the number of ranks.
auto divisible(std::vector<std::int64_t> sizes, std::size_t dim) {
  return [sizes, dim](Group group) {
    auto all = sizes;
    all[dim] *= group.size();
    return all;
  };
}

// Lengths that differ between ranks; one of them is 0.
std::vector<std::int64_t> uneven(Group group) {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < group.size(); ++rank) sizes.push_back((rank + 1) % 3);
  return sizes;
}

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// The number of rows that rank `from` sends to each rank, and that rank `to` gets from each.
std::vector<std::int64_t> sent_by(int from, int ranks) {
  std::vector<std::int64_t> sizes;
  for (int to = 0; to < ranks; ++to) sizes.push_back((from + 2 * to) % 3);
  return sizes;
}

std::vector<std::int64_t> received_by(int to, int ranks) {
  std::vector<std::int64_t> sizes;
  for (int from = 0; from < ranks; ++from) sizes.push_back((from + 2 * to) % 3);
  return sizes;
}

std::vector<Case> reductions() {
  auto with = [](Op op) {
    return [op](Group group, const at::Tensor& x) { return all_reduce(x, group, op); };
  };
  return {
      {"sum", fixed({3, 2}), with(Op::sum)},
      {"average", fixed({5}), with(Op::average)},
      {"min", fixed({7}), with(Op::min)},
      {"max", fixed({7}), with(Op::max)},
      {"product", fixed({3}), with(Op::product)},
      {"nothing", fixed({0}), with(Op::sum)},
      {"scalar", fixed({}), with(Op::sum)},
      {"transposed", fixed({3, 2}),
       [](Group group, const at::Tensor& x) { return all_reduce(x.t(), group); }},
      {"every other", fixed({7}),
       [](Group group, const at::Tensor& x) { return all_reduce(x.slice(0, 0, 7, 2), group); }},
      {"complex sum", fixed({3}), with(Op::sum), at::kComplexDouble},
      {"complex average", fixed({3}), with(Op::average), at::kComplexDouble},
      {"conjugated", fixed({3}),
       [](Group group, const at::Tensor& x) { return all_reduce(x.conj(), group); },
       at::kComplexDouble},
      {"reduce to the first", fixed({3}),
       [](Group group, const at::Tensor& x) { return reduce(x, group); }},
      {"reduce to the last", fixed({3}),
       [](Group group, const at::Tensor& x) { return reduce(x, group, group.size() - 1); }},
      {"used twice", fixed({3}),
       [](Group group, const at::Tensor& x) {
         auto sum = all_reduce(x, group);
         return all_reduce(sum * x, group, Op::average) + sum * sum;
       }},
  };
}

std::vector<Case> scatters() {
  return {
      {"first dim", divisible({2, 2}, 0),
       [](Group group, const at::Tensor& x) { return reduce_scatter(x, group); }},
      {"last dim, average", divisible({3, 1}, 1),
       [](Group group, const at::Tensor& x) { return reduce_scatter(x, group, -1, Op::average); }},
      {"uneven",
       [](Group group) {
         return std::vector{sum_of(uneven(group)), std::int64_t{2}};
       },
       [](Group group, const at::Tensor& x) { return reduce_scatter(x, group, uneven(group)); }},
      {"uneven average of the last dim",
       [](Group group) {
         return std::vector{std::int64_t{2}, sum_of(uneven(group))};
       },
       [](Group group, const at::Tensor& x) {
         return reduce_scatter(x, group, uneven(group), 1, Op::average);
       }},
      {"complex", divisible({1}, 0),
       [](Group group, const at::Tensor& x) { return reduce_scatter(x, group); },
       at::kComplexDouble},
  };
}

std::vector<Case> moves() {
  return {
      {"gather", fixed({2, 2}),
       [](Group group, const at::Tensor& x) { return all_gather(x, group); }},
      {"gather the last dim", fixed({3, 1}),
       [](Group group, const at::Tensor& x) { return all_gather(x, group, -1); }},
      {"gather a transposed tensor", fixed({3, 2}),
       [](Group group, const at::Tensor& x) { return all_gather(x.t(), group, 1); }},
      {"gather uneven parts",
       [](Group group) {
         return std::vector{uneven(group).at(group.rank()), std::int64_t{2}};
       },
       [](Group group, const at::Tensor& x) { return all_gather(x, group, uneven(group)); }},
      {"gather uneven parts of the last dim",
       [](Group group) {
         return std::vector{std::int64_t{3}, uneven(group).at(group.rank())};
       },
       [](Group group, const at::Tensor& x) { return all_gather(x, group, uneven(group), 1); }},
      {"gather complex numbers", fixed({2}),
       [](Group group, const at::Tensor& x) { return all_gather(x, group); }, at::kComplexDouble},
      {"exchange", divisible({1, 3}, 0),
       [](Group group, const at::Tensor& x) { return all_to_all(x, group); }},
      {"exchange rows for columns", divisible({1, 2}, 0),
       [](Group group, const at::Tensor& x) { return all_to_all(x, group, 0, 1); }},
      {"exchange columns for rows", divisible({3, 1, 2}, 1),
       [](Group group, const at::Tensor& x) { return all_to_all(x, group, 1, -1); }},
      {"exchange uneven parts",
       [](Group group) {
         return std::vector{sum_of(sent_by(group.rank(), group.size())), std::int64_t{2}};
       },
       [](Group group, const at::Tensor& x) {
         return all_to_all(x, group, received_by(group.rank(), group.size()),
                           sent_by(group.rank(), group.size()));
       }},
      {"broadcast from the first", fixed({3}),
       [](Group group, const at::Tensor& x) { return broadcast(x, group); }},
      {"broadcast from the last", fixed({3, 2}),
       [](Group group, const at::Tensor& x) { return broadcast(x, group, group.size() - 1); }},
  };
}

class Gradients : public test::BackendTest {
 protected:
  void run(const test::GroupBody& body) { test::run_apart(backend(), size(), body); }
  void check(const std::vector<Case>& cases) {
    run([&](Group group) {
      for (const Case& one : cases) {
        SCOPED_TRACE(one.name);
        auto sizes = one.sizes(group);
        auto count =
            std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies());
        auto input = values(group.rank(), count, one.dtype).view(sizes);
        auto loss = [&](Group ranks, const at::Tensor& x) {
          return some_loss(one.result(ranks, x), ranks.rank());
        };
        check_gradient(group, input, loss);
        if (group.size() < 4) check_second_gradient(group, input, loss);
      }
    });
  }
};

TEST_P(Gradients, OfReductions) { check(reductions()); }

TEST_P(Gradients, OfScatters) { check(scatters()); }

TEST_P(Gradients, OfMoves) { check(moves()); }

TEST_P(Gradients, OfTheEndsOfATensorParallelRegion) {
  run([](Group group) {
    auto same = values(0, 3, at::kDouble), own = values(group.rank(), 3, at::kDouble);
    auto enter = [](Group ranks, const at::Tensor& x) {
      return some_loss(copy_to(x, ranks), ranks.rank());
    };
    auto leave = [](Group ranks, const at::Tensor& x) {
      return some_loss(reduce_from(x, ranks), 0);
    };
    check_gradient(group, same, enter, Convention::replicated_input);
    check_second_gradient(group, same, enter, Convention::replicated_input);
    check_gradient(group, own, leave, Convention::replicated_loss);
    check_second_gradient(group, own, leave, Convention::replicated_loss);

    auto region = [&](Group ranks, const at::Tensor& x) {
      auto inside = (copy_to(x, ranks) * own).tanh() * own;
      return some_loss(reduce_from(inside, ranks), 0);
    };
    check_gradient(group, same, region, Convention::replicated);
    check_second_gradient(group, same, region, Convention::replicated);
  });
}

// Ranks that tie for the extreme value share its gradient; the gradient of a factor of zero is
// correct.
TEST_P(Gradients, OfTiesAndOfZeros) {
  run([](Group group) {
    auto equal = at::full({2}, 3.0, at::kDouble).requires_grad_();
    all_reduce(equal, group, Op::max).sum().backward();
    EXPECT_TRUE(equal.grad().allclose(at::ones({2}, at::kDouble))) << equal.grad();

    bool zero = group.rank() == 0;
    auto factor = at::full({2}, zero ? 0.0 : 2.0, at::kDouble).requires_grad_();
    all_reduce(factor, group, Op::product).sum().backward();
    double others = zero ? std::pow(2.0, group.size() - 1) : 0.0;
    EXPECT_TRUE(factor.grad().allclose(at::full({2}, others * group.size(), at::kDouble)));
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, Gradients,
                         testing::Combine(testing::Values(test::BackendKind::local),
                                          testing::Values(1, 2, 3, 4)),
                         test::backend_test_name);
INSTANTIATE_TEST_SUITE_P(Processes, Gradients,
                         testing::Combine(testing::Values(test::BackendKind::shm),
                                          testing::Values(3)),
                         test::backend_test_name);

}  // namespace
