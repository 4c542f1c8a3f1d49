#include "optim/norm.h"

#include "optim/formats_kernel.h"
#include "optim/scan_kernel.h"
#include "optim/threads.h"

#include <lockstep/base/check.h>
#include <lockstep/shard/value_source.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/max.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t norm_piece_elements = 1 << 16;

bool is_scanned_here(const at::Tensor& gradient) {
  at::ScalarType dtype = gradient.scalar_type();
  return gradient.device().is_cpu() && gradient.layout() == at::kStrided &&
         gradient.is_non_overlapping_and_dense() &&
         (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16);
}

double sum_of_floats(const float* gradient, std::int64_t count, const Treatment& treatment) {
  return sum_of_squares(gradient, count, static_cast<float>(treatment.factor),
                        static_cast<float>(treatment.limit));
}

double sum_of_16_bits(const at::Tensor& gradient, std::int64_t begin, std::int64_t end,
                      const Treatment& treatment) {
  std::array<float, 1024> buffer;
  auto* bits = static_cast<const std::uint16_t*>(gradient.const_data_ptr());
  double sum = 0;
  for (; begin < end; begin += std::ssize(buffer)) {
    std::int64_t count = std::min(std::ssize(buffer), end - begin);
    gradient.scalar_type() == at::kHalf ? widen_half(bits + begin, buffer.data(), count)
                                        : widen_bfloat16(bits + begin, buffer.data(), count);
    sum += sum_of_floats(buffer.data(), count, treatment);
  }
  return sum;
}

// To read values where they come from costs less than to have them in memory first, which somebody
// else then reads.
std::shared_ptr<shard::ValueSource> cheap_source_of(const at::Tensor& gradient) {
  if (!is_scanned_here(gradient) || gradient.scalar_type() != at::kFloat) return nullptr;
  auto source = shard::source_of(gradient);
  return source && source->bytes_an_element() <= gradient.element_size() ? source : nullptr;
}

// Of float32 gradients that are not in memory; the sums are those of memory.
double sum_of_source(const shard::ValueSource& source, std::int64_t begin, std::int64_t count,
                     const Treatment& treatment) {
  auto buffer = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count));
  source.read(begin, count, buffer.get());
  return sum_of_floats(buffer.get(), count, treatment);
}

// Pieces are added in their order, so the bits do not depend on the number of threads.
double scanned_sum_of_squares(const at::Tensor& gradient, const Treatment& treatment) {
  std::int64_t count = gradient.numel();
  std::vector<double> sums((count + norm_piece_elements - 1) / norm_piece_elements);
  auto source = cheap_source_of(gradient);
  for_each_in_parallel(sums.size(), [&](std::size_t i) {
    std::int64_t begin = static_cast<std::int64_t>(i) * norm_piece_elements;
    std::int64_t end = std::min(begin + norm_piece_elements, count);
    if (source)
      sums[i] = sum_of_source(*source, gradient.storage_offset() + begin, end - begin, treatment);
    else if (gradient.scalar_type() == at::kFloat)
      sums[i] = sum_of_floats(gradient.const_data_ptr<float>() + begin, end - begin, treatment);
    else
      sums[i] = sum_of_16_bits(gradient, begin, end, treatment);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

double part_of(const at::Tensor& gradient, const Treatment& treatment, double norm_type) {
  if (gradient.numel() == 0) return 0;
  if (norm_type == 2 && is_scanned_here(gradient))
    return scanned_sum_of_squares(gradient, treatment);
  at::Tensor values = gradient.abs() * treatment.factor;
  if (std::isfinite(treatment.limit)) values = values.clamp_max(treatment.limit);
  if (norm_type == infinity) return values.max().item<double>();
  return values.to(at::kDouble).pow(norm_type).sum().item<double>();
}

// std::max would lose what is not a number.
double greater(double a, double b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace

double treated_norm_part(std::span<const at::Tensor> gradients, const Treatment& treatment,
                         double norm_type) {
  check(norm_type >= 0, "norm of gradients: expected a norm type of 0 or more, found {}",
        norm_type);
  double part = 0;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (norm_type != 2 || !cheap_source_of(gradient))
      shard::bring(gradient, "norm of gradients", /*writes=*/false);
    if (norm_type == 0)
      part += 1;
    else if (norm_type == infinity)
      part = greater(part, part_of(gradient, treatment, norm_type));
    else
      part += part_of(gradient, treatment, norm_type);
  }
  return part;
}

double combined_norm(std::span<const at::Tensor> gradients, const Treatment& treatment,
                     double norm_type, const CombineParts& combine) {
  double part = treated_norm_part(gradients, treatment, norm_type);
  if (combine) part = combine(part, norm_type == infinity);
  return norm_of(part, norm_type);
}

}  // namespace lockstep::optim
