// Operations on lists of tensors: each element has placements of its own, and an operand outside of
// the lists has one for all elements.
#include "tests_of_global.h"

#include <torch/torch.h>

namespace lockstep {
namespace {

using test::expect_as_plain;
using test::numbers;
using test::Put;

TEST(ListOperations, InPlaceWithAPartialOperand) {
  for (const Placement& of_self :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Partial())})
    expect_as_plain({2}, [&](const Put& put) {
      std::vector<at::Tensor> x = {put(numbers({4}), {of_self})};
      std::vector<at::Tensor> y = {put(numbers({4}) + 1, {Partial()})};
      at::_foreach_mul_(x, y);
      at::_foreach_add_(x, y);
      return x[0];
    });
}

TEST(ListOperations, ATensorOfAllElementsHasOnePlacement) {
  const std::vector<Placement> kinds = {Replicate(), Partial(), Shard(0)};
  for (const Placement& first : kinds)
    for (const Placement& second : kinds)
      for (const Placement& shared : {Placement(Replicate()), Placement(Partial())})
        expect_as_plain({2}, [&](const Put& put) {
          std::vector<at::Tensor> x = {put(numbers({4}), {first}), put(numbers({4}) * 2, {second})};
          at::Tensor s = put(at::full({}, 10.0F), {shared});
          std::vector<at::Tensor> sums = at::_foreach_add(x, s), products = at::_foreach_mul(x, s);
          at::_foreach_mul_(x, s);
          return at::cat({sums[0], sums[1], products[0], products[1], x[0], x[1]});
        });
}

}  // namespace
}  // namespace lockstep
