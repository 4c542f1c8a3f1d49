#include "support/torch/values.h"

#include "base/fingerprint.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

namespace lockstep::test {
namespace {

bool is_floating(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

std::int64_t number(int rank, std::int64_t index, int salt) {
  return static_cast<std::int64_t>(fingerprint_of(std::int64_t{rank}, index, std::int64_t{salt}) %
                                   2001) -
         1000;
}

template <class Number>
Number combine(Number left, Number right, Op op) {
  switch (op) {
    case Op::sum:
    case Op::average:
      return left + right;
    case Op::product:
      return left * right;
    case Op::min:
      return std::isnan(static_cast<double>(left)) || left < right ? left : right;
    case Op::max:
      return std::isnan(static_cast<double>(left)) || left > right ? left : right;
    default:
      break;
  }
  if constexpr (std::is_integral_v<Number>) {
    if (op == Op::band) return left & right;
    if (op == Op::bor) return left | right;
    if (op == Op::bxor) return left ^ right;
  }
  return Number{};
}

// Computes the tree of the contract: [low, high) splits after the largest power of two below its
// length.
template <class Number>
Number in_tree(const std::vector<const Number*>& ranks, std::int64_t index, std::size_t low,
               std::size_t high, Op op) {
  if (high - low == 1) return ranks[low][index];
  std::size_t left = 1;
  while (left * 2 < high - low) left *= 2;
  return combine(in_tree(ranks, index, low, low + left, op),
                 in_tree(ranks, index, low + left, high, op), op);
}

template <class Number>
at::Tensor reduce_as(const std::vector<at::Tensor>& inputs, Op op, at::ScalarType dtype) {
  std::vector<at::Tensor> converted;
  std::vector<const Number*> ranks;
  for (const auto& input : inputs) {
    converted.push_back(input.to(dtype).contiguous());
    ranks.push_back(converted.back().const_data_ptr<Number>());
  }
  auto result = at::empty(inputs.front().sizes(), dtype);
  auto* to = result.mutable_data_ptr<Number>();
  for (std::int64_t index = 0; index < result.numel(); ++index) {
    to[index] = in_tree(ranks, index, 0, ranks.size(), op);
    if (op == Op::average) to[index] /= static_cast<Number>(inputs.size());
  }
  return result.to(inputs.front().scalar_type());
}

}  // namespace

bool is_defined(Op op, at::ScalarType dtype) {
  bool bits = op == Op::band || op == Op::bor || op == Op::bxor;
  return is_floating(dtype) ? !bits : op != Op::average;
}

at::Tensor values(int rank, std::int64_t count, at::ScalarType dtype, int salt) {
  if (at::isComplexType(dtype)) {
    auto parts = values(rank, 2 * count, at::toRealValueType(dtype), salt);
    return parts.view({count, 2}).view(dtype).view({count});
  }
  std::vector<double> numbers(count);
  for (std::int64_t index = 0; index < count; ++index) {
    auto any = number(rank, index, salt);
    if (dtype == at::kBool) {
      numbers[index] = any % 2 != 0;
    } else if (is_floating(dtype) || dtype == at::kFloat8_e4m3fn) {
      numbers[index] = static_cast<double>(any) / 300;
    } else {
      numbers[index] = static_cast<double>(c10::isSignedType(dtype) ? any / 8 : std::abs(any) / 8);
    }
  }
  return at::tensor(numbers, at::kDouble).to(dtype);
}

at::Tensor expected_reduction(const std::vector<at::Tensor>& inputs, Op op) {
  auto dtype = inputs.front().scalar_type();
  if (dtype == at::kDouble) return reduce_as<double>(inputs, op, at::kDouble);
  if (is_floating(dtype)) return reduce_as<float>(inputs, op, at::kFloat);
  return reduce_as<std::int64_t>(
      inputs, op, at::kLong);  // wraps into the dtype; for bool, any nonzero number is true
}

at::Tensor expected_reduction(int size, std::int64_t count, at::ScalarType dtype, Op op, int salt) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(values(rank, count, dtype, salt));
  return expected_reduction(inputs, op);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return a.contiguous().view({-1}).view(at::kByte).equal(b.contiguous().view({-1}).view(at::kByte));
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (!a.is_floating_point()) return a.equal(b);
  double tolerance = a.element_size() == 2 ? 1e-2 : 1e-5;
  return a.to(at::kDouble).allclose(b.to(at::kDouble), tolerance, tolerance);
}

}  // namespace lockstep::test
