#include "global/checks.h"

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/format.h"

#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::global {
namespace {

constexpr std::uint64_t first_ones = 8;
constexpr double rounding = 1e-5;  // of a sum, relative to the sum of magnitudes

bool is_power_of_two_or_zero(std::uint64_t number) { return (number & (number - 1)) == 0; }

// Returns one row per rank. `own` and the result are in host memory.
at::Tensor rows_of_ranks(const at::Tensor& own, Group& group, std::string_view tag) {
  at::Tensor all = at::empty({group.size(), own.size(0)}, own.options());
  group.all_gather(all, own, {.tag = tag}).wait();
  return all;
}

// Returns sums that differ between different tensors, and their magnitude; exact for integers.
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

std::int64_t fingerprint_of(at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const auto* bytes = static_cast<const char*>(state.const_data_ptr());
  return static_cast<std::int64_t>(fingerprint(std::string_view(bytes, state.nbytes())));
}

}  // namespace

void PlainCheck::look(const at::Tensor& tensor, std::string_view operation, Group& group) {
  const std::uint64_t number = count_++;
  if (number >= first_ones && !is_power_of_two_or_zero(number)) return;
  const bool has_values = !tensor.is_meta() && tensor.layout() == at::kStrided &&
                          !tensor.is_complex() && !tensor.is_quantized();
  if (group.size() == 1 || !has_values) return;
  at::NoGradGuard no_grad;
  const std::array<double, 3> mine = sums_of(tensor);
  at::Tensor own = at::empty({3}, at::kDouble);
  std::ranges::copy(mine, own.data_ptr<double>());
  const at::Tensor all = rows_of_ranks(own, group, "plain tensors");
  const auto* sums = all.const_data_ptr<double>();
  const bool is_exact = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  for (int rank = 1; rank < group.size(); ++rank) {
    const double* other = sums + 3 * static_cast<std::ptrdiff_t>(rank);
    const double most = is_exact ? 0 : rounding * std::max(sums[2], other[2]);
    if (are_equal(sums[0], other[0], most) && are_equal(sums[1], other[1], 8191 * most)) continue;
    throw Mismatch(
        formatted("{}: a plain {} tensor of sizes {} counts as replicated: expected equal values "
                  "on all ranks of its mesh, found different ones on rank {} and on rank 0; ranks "
                  "that compute one model together need the same batch",
                  operation, c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()), rank));
  }
}

void GeneratorCheck::look(at::Generator generator, std::string_view operation, Group& group) {
  if (group.size() == 1) return;
  std::int64_t state = 0;
  {
    std::lock_guard lock(mutex_);
    std::lock_guard drawing(generator.mutex());
    const std::uint64_t seed = generator.current_seed();
    if (seed != seed_) count_ = 0;
    seed_ = seed;
    const std::uint64_t number = count_++;
    if (!is_power_of_two_or_zero(number)) return;
    state = fingerprint_of(generator);
  }
  at::NoGradGuard no_grad;
  at::Tensor own = at::empty({1}, at::kLong);
  *own.mutable_data_ptr<std::int64_t>() = state;
  const at::Tensor all = rows_of_ranks(own, group, "states of generators");
  const auto* states = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < group.size(); ++rank)
    if (states[rank] != states[0])
      throw Mismatch(formatted(
          "{}: expected generators in the same state on all ranks that compute one model together, "
          "found different ones on rank {} and on rank 0; seed them alike, by torch::manual_seed()",
          operation, rank));
}

void check_range(const at::Tensor& values, std::int64_t end, const std::string& expected) {
  if (values.numel() == 0) return;
  if (!values.is_cpu())
    return at::_assert_async(values.ge(0).logical_and_(values.lt(end)).all(), expected);
  const auto [least, most] = at::aminmax(values);
  const auto first = least.item<std::int64_t>(), last = most.item<std::int64_t>();
  check(first >= 0 && last < end, "{}, found {}", expected, first < 0 ? first : last);
}

}  // namespace lockstep::global
