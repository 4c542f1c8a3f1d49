// Activations, cumulative operations, selections, diagonals, windows and padding give the same
// results on global tensors as on a single process.
#include "cases_of_operations.h"
#include "support/torch/backend_test.h"

#include <cmath>

namespace lockstep {
namespace {

using test::Case;
using test::case_of;
using test::Tensors;

std::vector<Case> activation_cases() {
  using T = const at::Tensor&;
  return {
      case_of("softplus", [](T x) { return at::softplus(x); }),
      case_of("elu", [](T x) { return at::elu(x, 0.7); }),
      case_of("celu", [](T x) { return at::celu(x, 0.7); }),
      case_of("selu", [](T x) { return at::selu(x); }),
      case_of("hardtanh", [](T x) { return at::hardtanh(x, -0.5, 0.7); }),
      case_of("relu6", [](T x) { return at::relu6(x * 5); }),
      case_of("hardsigmoid", [](T x) { return at::hardsigmoid(x * 3); }),
      case_of("hardswish", [](T x) { return at::hardswish(x * 3); }),
      case_of("softshrink", [](T x) { return at::softshrink(x, 0.3); }),
      case_of("hardshrink", [](T x) { return at::hardshrink(x, 0.3); }),
      case_of("threshold", [](T x) { return at::threshold(x, 0.1, 2); }),
      case_of("leaky_relu", [](T x) { return at::leaky_relu(x, 0.1); }),
      case_of("log_sigmoid", [](T x) { return at::log_sigmoid(x); }),
      case_of("mish", [](T x) { return at::mish(x); }),
      case_of("logit", [](T x) { return at::logit(x.sigmoid(), 1e-6); }),
      case_of("glu", [](T x) { return at::glu(x, 1); }),
      case_of("hardswish_",
              [](T x) {
                at::Tensor y = x * 3;
                return at::hardswish_(y);
              }),
      {"prelu", {{5, 4}, {4}}, [](const Tensors& x) { return Tensors{at::prelu(x[0], x[1])}; }},
      {"prelu of channels",
       {{2, 3, 4}, {3}},
       [](const Tensors& x) { return Tensors{at::prelu(x[0], x[1])}; }},
      {"masked by a tensor",
       {{5, 4}, {}},
       [](const Tensors& x) { return Tensors{x[0].masked_fill(x[0].detach() > 0, x[1])}; }},
  };
}

std::vector<Case> cumulative_cases() {
  using T = const at::Tensor&;
  auto with_nan = [](T x) { return x.masked_fill(x.detach() > 0.5, std::nan("")); };
  return {
      case_of("cumsum", [](T x) { return x.cumsum(0) + x.cumsum(1); }),
      case_of("cumprod", [](T x) { return x.cumprod(0) + x.cumprod(1); }),
      case_of("cumprod with zeros", [](T x) { return x.relu().cumprod(0) + x.relu().cumprod(1); }),
      case_of("cummax", [](T x) { return std::get<0>(x.cummax(0)) + std::get<0>(x.cummax(1)); }),
      case_of("cummin", [](T x) { return std::get<0>(x.cummin(0)) + std::get<0>(x.cummin(1)); }),
      case_of("logcumsumexp", [](T x) { return x.logcumsumexp(0) + x.logcumsumexp(1); }),
      case_of("nansum", [=](T x) { return with_nan(x).nansum(0) + with_nan(x).nansum(); }),
      case_of("count_nonzero",
              [](T x) {
                at::Tensor y = x.detach().relu();
                return x * y.count_nonzero(at::IntArrayRef({0})) + y.count_nonzero();
              }),
      case_of("median", [](T x) { return x.median() + std::get<0>(x.median(1)); }),
      case_of("nanmedian",
              [=](T x) {
                return with_nan(x).detach().nanmedian() + std::get<0>(x.nanmedian(0, true));
              }),
      case_of("kthvalue", [](T x) { return std::get<0>(x.kthvalue(2, 0)); }),
      case_of("mode", [](T x) { return std::get<0>(x.mode(1)); }),
      case_of("aminmax",
              [](T x) {
                const at::Tensor y = test::aminmax_has_gradient ? x : x.detach();
                auto [least, most] = y.aminmax(0);
                auto [first, last] = y.aminmax();
                return least * most + first * last + x;
              }),
      case_of("sort", [](T x) { return std::get<0>(x.sort(1)) + std::get<0>(x.sort(0, true)); }),
      case_of("prod", [](T x) { return x.prod(1) + x.prod(); }),
      case_of("trace", [](T x) { return x.trace() + x.t().trace() * 2; }),
      case_of("triangles", [](T x) { return x.tril(-1) + x.triu(1) * 2; }),
      case_of("masked_select", [](T x) { return x.masked_select(x.detach() > 0); }),
      {"masked_scatter",
       {{5, 4}, {20}},
       [](const Tensors& x) { return Tensors{x[0].masked_scatter(x[0].detach() > 0, x[1])}; }},
      {"index_add",
       {{5, 4}, {4}},
       [](const Tensors& x) {
         at::Tensor places = at::ones_like(x[1].detach()).cumsum(0).to(at::kLong);
         return Tensors{x[0].index_add(1, places - 1, x[0]) + x[1]};
       }},
      case_of("take",
              [](T x) { return x.take(at::ones_like(x.select(0, 0)).to(at::kLong).cumsum(0)); }),
      case_of("one_hot",
              [](T x) {
                at::Tensor classes = x.detach().argmax(1);
                return at::one_hot(classes, 4) * x + at::one_hot(classes).sum();
              }),
      case_of("index_fill",
              [](T x) {
                at::Tensor index = (x.detach().select(1, 0) * 0).to(at::kLong).narrow(0, 0, 1);
                return x.index_fill(0, index, 2.0) + x.index_copy(0, index, x.narrow(0, 1, 1));
              }),
  };
}

std::vector<Case> diagonal_cases() {
  using T = const at::Tensor&;
  return {
      case_of("diagonal", {5, 4}, [](T x) { return x.diagonal(); }),
      case_of("diagonal above", {4, 3, 5}, [](T x) { return x.diagonal(2, 0, 2); }),
      case_of("diagonal below", {4, 3, 5}, [](T x) { return x.diagonal(-2, -1, 0) * 2; }),
      case_of("no diagonal", {4, 3}, [](T x) { return x.diagonal(7).sum() + x; }),
      case_of("diag_embed", {3, 4}, [](T x) { return x.diag_embed(); }),
      case_of("diag_embed above", {3, 4}, [](T x) { return x.diag_embed(2, 0, 2); }),
      case_of("diag_embed below", {3, 4}, [](T x) { return x.diag_embed(-1, -1, 1); }),
      case_of("diag", {4}, [](T x) { return at::diag(x) + at::diag(x, 1).diag(1).sum(); }),
      case_of("windows", {3, 8}, [](T x) { return x.unfold(1, 3, 2); }),
      case_of("windows of rows", {6, 4}, [](T x) { return x.unfold(0, 2, 1); }),
      case_of("padding", {3, 4},
              [](T x) {
                return at::constant_pad_nd(x, {1, 2}, 0.5) * 2;
              }),
      case_of("padding of rows", {3, 4},
              [](T x) {
                return at::constant_pad_nd(x, {0, 0, 2, 1});
              }),
      case_of("padding that cuts", {5, 4},
              [](T x) {
                return at::constant_pad_nd(x, {-1, 1, -2, 0}, 3);
              }),
  };
}

class MoreOperations : public test::BackendTest {
 protected:
  void try_all(const std::vector<Case>& cases) {
    run(
        [&](Group world) {
          for (const Case& one : cases) test::try_case(one, world);
        },
        std::chrono::seconds(60));
  }
};

TEST_P(MoreOperations, Activations) { try_all(activation_cases()); }
TEST_P(MoreOperations, CumulativeAndChoosing) { try_all(cumulative_cases()); }
TEST_P(MoreOperations, DiagonalsWindowsAndPadding) { try_all(diagonal_cases()); }

INSTANTIATE_TEST_SUITE_P(Ranks, MoreOperations,
                         testing::Values(std::tuple(test::BackendKind::local, 1),
                                         std::tuple(test::BackendKind::local, 2),
                                         std::tuple(test::BackendKind::local, 3),
                                         std::tuple(test::BackendKind::local, 4)),
                         test::backend_test_name);

}  // namespace
}  // namespace lockstep
