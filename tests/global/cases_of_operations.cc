#include "cases_of_operations.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace lockstep::test {
namespace {

// Makes a case of an operation on one tensor.
Case case_of(std::string name, std::vector<std::int64_t> sizes,
             std::function<at::Tensor(const at::Tensor&)> run) {
  return {std::move(name), {std::move(sizes)}, [run = std::move(run)](const Tensors& x) {
            return Tensors{run(x[0])};
          }};
}

// Makes a case of an operation on a matrix [5, 4].
Case case_of(std::string name, std::function<at::Tensor(const at::Tensor&)> run) {
  return case_of(std::move(name), {5, 4}, std::move(run));
}

std::vector<Case> pointwise_cases() {
  return {
      case_of("relu", [](const at::Tensor& x) { return at::relu(x); }),
      case_of("gelu", [](const at::Tensor& x) { return at::gelu(x); }),
      case_of("silu", [](const at::Tensor& x) { return at::silu(x); }),
      case_of("tanh", [](const at::Tensor& x) { return at::tanh(x); }),
      case_of("exp neg", [](const at::Tensor& x) { return at::exp(-x); }),
      case_of("clone", [](const at::Tensor& x) { return x.clone(); }),
      case_of("to float", [](const at::Tensor& x) { return x.to(at::kFloat).to(at::kDouble); }),
      case_of("scaled", [](const at::Tensor& x) { return x * 2.5 / 3 + 1; }),
      case_of("1 - x", [](const at::Tensor& x) { return 1 - x; }),
      case_of("in place",
              [](const at::Tensor& x) {
                at::Tensor y = x * 1;
                y.add_(x).mul_(0.5);
                return y.sub_(1);
              }),
      case_of("like", [](const at::Tensor& x) { return at::zeros_like(x) + at::ones_like(x) * x; }),
      case_of("where", [](const at::Tensor& x) { return at::where(x > 0, x, x * 0.1); }),
      case_of("masked", [](const at::Tensor& x) { return x.masked_fill(x > 0.5, 0.0); }),
      {"add", {{5, 4}, {5, 4}}, [](const Tensors& x) { return Tensors{x[0] + x[1]}; }},
      {"spread",
       {{5, 4}, {4}, {5, 1}},
       [](const Tensors& x) { return Tensors{x[0] * x[1] - x[2]}; }},
      {"addcmul",
       {{5, 4}, {5, 4}, {5, 4}},
       [](const Tensors& x) { return Tensors{at::addcmul(x[0], x[1], x[2], 0.3)}; }},
      {"lerp", {{5, 4}, {5, 4}}, [](const Tensors& x) { return Tensors{x[0].lerp(x[1], 0.3)}; }},
  };
}

std::vector<Case> matmul_cases() {
  return {
      {"vector times matrix",
       {{4}, {4, 3}},
       [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; }},
      {"vector times matrices",
       {{4}, {2, 4, 3}},
       [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; }},
      {"matrices times vector",
       {{2, 3, 4}, {4}},
       [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; }},
      {"matrices times matrix",
       {{2, 3, 4}, {4, 5}},
       [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; }},
      {"matrix times matrices",
       {{3, 4}, {2, 4, 5}},
       [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; }},
      {"vector times vector",
       {{4}, {4}},
       [](const Tensors& x) { return Tensors{at::matmul(x[0], x[1])}; }},
      {"mm", {{5, 4}, {4, 3}}, [](const Tensors& x) { return Tensors{x[0].mm(x[1])}; }},
      {"linear",
       {{5, 4}, {3, 4}, {3}},
       [](const Tensors& x) { return Tensors{at::linear(x[0], x[1], x[2])}; }},
      {"linear of rows",
       {{2, 3, 4}, {6, 4}, {6}},
       [](const Tensors& x) { return Tensors{at::linear(x[0], x[1], x[2])}; }},
      {"matmul",
       {{2, 3, 4}, {2, 4, 5}},
       [](const Tensors& x) { return Tensors{x[0].matmul(x[1])}; }},
      {"matmul of heads",
       {{2, 3, 4, 2}, {2, 3, 2, 4}},
       [](const Tensors& x) { return Tensors{x[0].matmul(x[1])}; }},
      {"mv", {{5, 4}, {4}}, [](const Tensors& x) { return Tensors{x[0].matmul(x[1])}; }},
      {"baddbmm",
       {{2, 1, 5}, {2, 3, 4}, {2, 4, 5}},
       [](const Tensors& x) { return Tensors{at::baddbmm(x[0], x[1], x[2], 0.5, 2)}; }},
  };
}

std::vector<Case> reduction_cases() {
  return {
      case_of("sum", [](const at::Tensor& x) { return x.sum(); }),
      case_of("sum of dim", [](const at::Tensor& x) { return x.sum(0) + x.sum(0, true); }),
      case_of("mean", [](const at::Tensor& x) { return x.mean(); }),
      case_of("mean of dim", [](const at::Tensor& x) { return x.mean({-1}, true); }),
      case_of("amax", [](const at::Tensor& x) { return x.amax({0}); }),
      case_of("max", [](const at::Tensor& x) { return x.max(); }),
      case_of("max of dim",
              [](const at::Tensor& x) { return std::get<0>(x.detach().max(1)) + x.sum(1); }),
      case_of("var", [](const at::Tensor& x) { return x.var(0, false); }),
      case_of("norm", [](const at::Tensor& x) { return x.norm(); }),
      case_of("norm of dim", [](const at::Tensor& x) { return at::linalg_vector_norm(x, 3, 0); }),
      case_of("largest norm",
              [](const at::Tensor& x) {
                return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity());
              }),
      case_of("cumsum", [](const at::Tensor& x) { return x.cumsum(0); }),
      case_of("softmax", [](const at::Tensor& x) { return x.softmax(-1); }),
      case_of("log_softmax", [](const at::Tensor& x) { return x.log_softmax(0); }),
      case_of("logsumexp", [](const at::Tensor& x) { return x.logsumexp(1); }),
      case_of("tril", [](const at::Tensor& x) { return x.tril(); }),
  };
}

std::vector<Case> view_cases() {
  return {
      case_of("view", {4, 6},
              [](const at::Tensor& x) {
                return x.view({2, 2, 3, 2});
              }),
      case_of("flatten", {3, 2, 4}, [](const at::Tensor& x) { return x.flatten(0, 1); }),
      case_of("flatten all", {3, 2, 4}, [](const at::Tensor& x) { return x.reshape({-1}); }),
      case_of("t", {5, 4}, [](const at::Tensor& x) { return x.t(); }),
      case_of("heads", {2, 3, 4},
              [](const at::Tensor& x) {
                return x.view({2, 3, 2, 2}).transpose(1, 2).contiguous().view({4, 6});
              }),
      case_of("permute", {2, 3, 4},
              [](const at::Tensor& x) {
                return x.permute({2, 0, 1});
              }),
      case_of("unsqueeze", {3, 4}, [](const at::Tensor& x) { return x.unsqueeze(1).squeeze(); }),
      case_of("squeeze", {3, 1, 2}, [](const at::Tensor& x) { return x.squeeze(1); }),
      case_of("expand", {3, 1},
              [](const at::Tensor& x) {
                return x.expand({2, 3, 4});
              }),
      case_of("select", {5, 4}, [](const at::Tensor& x) { return x.select(0, -2); }),
      case_of("slice", {5, 4},
              [](const at::Tensor& x) { return x.narrow(0, 1, 3).slice(1, 0, 4, 2); }),
      case_of("write to a part", {5, 4},
              [](const at::Tensor& x) {
                at::Tensor y = x * 2;
                at::NoGradGuard no_grad;
                y.detach().t().mul_(3);
                return y;
              }),
      case_of("repeat", {3, 2},
              [](const at::Tensor& x) {
                return x.repeat({2, 1, 3});
              }),
      case_of("repeat heads", {2, 2, 3},
              [](const at::Tensor& x) { return x.repeat_interleave(2, 1); }),
      {"split", {{3, 6}}, [](const Tensors& x) { return x[0].split(2, 1); }},
      {"uneven split", {{3, 5}}, [](const Tensors& x) { return x[0].split(2, 1); }},
      {"chunk", {{6, 3}}, [](const Tensors& x) { return x[0].chunk(3); }},
      {"unbind", {{3, 4}}, [](const Tensors& x) { return x[0].unbind(0); }},
      {"cat",
       {{3, 4}, {3, 4}},
       [](const Tensors& x) {
         return Tensors{at::cat({x[0], x[1]}, 1)};
       }},
      {"cat of others", {{3, 4}, {2, 4}}, [](const Tensors& x) { return Tensors{at::cat(x)}; }},
      {"stack", {{3, 4}, {3, 4}}, [](const Tensors& x) { return Tensors{at::stack(x, -1)}; }},
  };
}

std::vector<Case> layer_cases() {
  return {
      {"layer_norm",
       {{2, 3, 4}, {4}, {4}},
       [](const Tensors& x) { return Tensors{at::layer_norm(x[0], {4}, x[1], x[2])}; }},
      {"layer_norm without weights",
       {{3, 4}},
       [](const Tensors& x) { return Tensors{at::layer_norm(x[0], {4})}; }},
      {"attention without a fused kernel",  // values have other features
       {{2, 4, 3, 2}, {2, 4, 3, 2}, {2, 4, 3, 3}},
       [](const Tensors& x) {
         return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true)};
       }},
      {"attention",
       {{2, 4, 3, 2}, {2, 4, 3, 2}, {2, 4, 3, 2}},
       [](const Tensors& x) {
         return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true)};
       }},
      {"convolution",
       {{4, 2, 6, 6}, {4, 2, 3, 3}, {4}},
       [](const Tensors& x) { return Tensors{at::conv2d(x[0], x[1], x[2], 2, 1)}; }},
      {"pooling",
       {{4, 2, 5, 5}},
       [](const Tensors& x) {
         return Tensors{at::max_pool2d(x[0], 2), at::avg_pool2d(x[0], {3}, {2}, {1}),
                        at::adaptive_avg_pool2d(x[0], {2, 2})};
       }},
  };
}

// Returns each loss with all three reductions.
std::vector<Case> loss_cases() {
  auto one = [](std::string name, auto function) {
    return Case{std::move(name), {{5, 4}, {5, 4}}, [=](const Tensors& x) {
                  return Tensors{function(x[0], x[1], at::Reduction::None),
                                 function(x[0], x[1], at::Reduction::Mean),
                                 function(x[0], x[1], at::Reduction::Sum)};
                }};
  };
  using T = const at::Tensor&;
  return {
      one("mse", [](T x, T y, std::int64_t how) { return at::mse_loss(x, y, how); }),
      one("l1", [](T x, T y, std::int64_t how) { return at::l1_loss(x, y, how); }),
      one("smooth l1", [](T x, T y, std::int64_t how) { return at::smooth_l1_loss(x, y, how); }),
      one("huber", [](T x, T y, std::int64_t how) { return at::huber_loss(x, y, how); }),
      one("binary cross-entropy",
          [](T x, T y, std::int64_t how) {
            return at::binary_cross_entropy_with_logits(x, y.detach().sigmoid(), {}, {}, how) +
                   at::binary_cross_entropy(x.sigmoid(), y.detach().sigmoid(), {}, how) +
                   0 * y.sum();
          }),
      {"binary cross-entropy with weights of classes",
       {{5, 4}, {5, 4}, {4}},
       [](const Tensors& x) {
         auto target = x[1].detach().sigmoid();
         auto weight = x[2].detach().abs() + 1;
         return Tensors{at::binary_cross_entropy_with_logits(x[0], target, weight, weight) +
                        at::binary_cross_entropy(x[0].sigmoid(), target, weight) + 0 * x[1].sum() +
                        0 * x[2].sum()};
       }},
  };
}

// Returns the operations of a Llama block.
std::vector<Case> llama_cases() {
  auto turned = [](const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    auto parts = x.chunk(2, -1);
    return at::cat({parts[0] * cos - parts[1] * sin, parts[0] * sin + parts[1] * cos}, -1);
  };
  return {
      {"rms norm",
       {{3, 5, 4}, {4}},
       [](const Tensors& x) {
         return Tensors{x[0] * (x[0].pow(2).mean(-1, true) + 1e-5).rsqrt() * x[1]};
       }},
      {"rotary",
       {{2, 4, 5, 4}, {5, 2}, {5, 2}},
       [=](const Tensors& x) { return Tensors{turned(x[0], x[1], x[2])}; }},
      {"without bias",
       {{2, 3, 4}, {6, 4}},
       [](const Tensors& x) { return Tensors{at::linear(x[0], x[1])}; }},
      {"grouped queries",
       {{2, 4, 3, 2}, {2, 2, 3, 2}, {2, 2, 3, 2}},
       [](const Tensors& x) {
         at::Tensor k = x[1].repeat_interleave(2, 1), v = x[2].repeat_interleave(2, 1);
         at::Tensor mixed = at::scaled_dot_product_attention(x[0], k, v, {}, 0.0, true);
         return Tensors{mixed.transpose(1, 2).reshape({2, 3, 8})};
       }},
      {"swiglu",
       {{2, 3, 4}, {6, 4}, {6, 4}, {4, 6}},
       [](const Tensors& x) {
         return Tensors{
             at::linear(at::silu(at::linear(x[0], x[1])) * at::linear(x[0], x[2]), x[3])};
       }},
  };
}

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
                const at::Tensor y = aminmax_has_gradient ? x : x.detach();
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

}  // namespace

std::vector<CasesOfKind> cases_of_operations() {
  return {{"activations", activation_cases()},
          {"cumulative_and_choosing", cumulative_cases()},
          {"diagonals_windows_and_padding", diagonal_cases()},
          {"layers", layer_cases()},
          {"losses", loss_cases()},
          {"pieces_of_a_llama_block", llama_cases()},
          {"pointwise", pointwise_cases()},
          {"products_of_matrices", matmul_cases()},
          {"reductions", reduction_cases()},
          {"views", view_cases()}};
}

}  // namespace lockstep::test
