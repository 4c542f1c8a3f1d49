#include "global/plain_check.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::global {
namespace {

constexpr std::uint64_t first_ones = 8;
constexpr double rounding = 1e-5;  // of sums of numbers, as a part of the sum of their magnitudes

// Sums that tell tensors apart, and how large they may be: exact for integers.
std::array<double, 3> sums_of(const at::Tensor& tensor) {
  constexpr std::int64_t weights = 8191;
  const at::Tensor values = tensor.detach().to(at::kCPU, at::kDouble).reshape({-1});
  const at::Tensor places = at::arange(values.numel(), at::kDouble).remainder_(weights).add_(1);
  return {values.sum().item<double>(), (values * places).sum().item<double>(),
          values.abs().sum().item<double>()};
}

bool are_equal(double one, double other, double tolerance) {
  return one == other || (std::isnan(one) && std::isnan(other)) ||
         std::abs(one - other) <= tolerance;
}

}  // namespace

void PlainCheck::look(const at::Tensor& tensor, std::string_view operation, Group& group) {
  const std::uint64_t number = count_++;
  if (number >= first_ones && (number & (number - 1)) != 0) return;
  const bool has_values = (tensor.is_cpu() || tensor.is_cuda()) &&
                          tensor.layout() == at::kStrided && !tensor.is_complex() &&
                          !tensor.is_quantized();
  if (group.size() == 1 || !has_values) return;
  at::NoGradGuard no_grad;
  const std::array<double, 3> mine = sums_of(tensor);
  at::Tensor own = at::empty({3}, at::kDouble), all = at::empty({group.size(), 3}, at::kDouble);
  std::ranges::copy(mine, own.data_ptr<double>());
  const bool on_host = group.backend() != "nccl";
  at::Tensor gathered = on_host ? all : all.to(tensor.device());
  group.all_gather(gathered, on_host ? own : own.to(tensor.device()), {.tag = "plain tensors"})
      .wait();
  all = gathered.cpu();
  const auto* sums = all.const_data_ptr<double>();
  const bool is_exact = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  for (int rank = 1; rank < group.size(); ++rank) {
    const double* other = sums + 3 * static_cast<std::ptrdiff_t>(rank);
    const double most = is_exact ? 0 : rounding * std::max(sums[2], other[2]);
    if (are_equal(sums[0], other[0], most) && are_equal(sums[1], other[1], 8191 * most)) continue;
    throw Mismatch(formatted(
        "{}: a plain {} tensor of sizes {} counts as replicated: expected equal values on all "
        "ranks of its mesh, found others on rank {} than on rank 0; ranks that compute one model "
        "together need the same batch",
        operation, c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()), rank));
  }
}

}  // namespace lockstep::global
