#include "comm/backend/tensors.h"

#include <lockstep/base/error.h>
#include <lockstep/comm/backend.h>

#include "base/check.h"
#include "base/format.h"
#include "comm/kernels/combine.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include <limits>
#include <vector>

namespace lockstep {
namespace {

at::Tensor combine(const at::Tensor& left, const at::Tensor& right, Op op) {
  switch (op) {
    case Op::sum:
    case Op::average:
      return at::add(left, right);
    case Op::product:
      return at::mul(left, right);
    case Op::min:
      return at::minimum(left, right);
    case Op::max:
      return at::maximum(left, right);
    case Op::band:
      return at::bitwise_and(left, right);
    case Op::bor:
      return at::bitwise_or(left, right);
    case Op::bxor:
      return at::bitwise_xor(left, right);
  }
  throw InvalidArgument("a reduction by an operation that does not exist");
}

at::Tensor widened(const at::Tensor& value) {
  auto dtype = value.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? value.to(at::kFloat) : value;
}

at::Tensor branch(std::span<const at::Tensor> values, Op op) {
  if (values.size() == 1) return widened(values.front());
  auto left = static_cast<std::size_t>(left_branch(static_cast<int>(values.size())));
  return combine(branch(values.first(left), op), branch(values.subspan(left), op), op);
}

}  // namespace

std::size_t host_bytes(std::string_view call, at::IntArrayRef sizes,
                       const at::TensorOptions& options) {
  check(options.device().is_cpu(), "{}: expected host memory, found {}", call,
        options.device().str());
  auto bytes = static_cast<std::int64_t>(options.dtype().itemsize());
  for (auto size : sizes) {
    check(size >= 0, "{}: sizes must not be negative, found {}", call, size);
    bool overflows = size > 0 && bytes > std::numeric_limits<std::int64_t>::max() / size;
    check(!overflows, "{}: more bytes than there are addresses", call);
    bytes *= size;
  }
  return static_cast<std::size_t>(bytes);
}

std::string node_shared_tag(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return formatted("empty_node_shared [{}] {}", listed(sizes, ", "),
                   c10::toString(c10::typeMetaToScalarType(options.dtype())));
}

at::Tensor reduce_in_tree(std::span<const at::Tensor> values, Op op) {
  auto result = branch(values, op);
  if (values.size() == 1) result = result.clone();
  if (op != Op::average) return result;
  // A tensor divisor: with a number ATen may multiply by its reciprocal, which rounds differently.
  return at::div(result, at::full_like(result, static_cast<double>(values.size())));
}

void reduce_in_tree_into(const at::Tensor& result, std::span<const at::Tensor> values, Op op) {
  const auto dtype = dtype_of(result.scalar_type());
  if (!result.is_cpu() || values.size() > kernels::max_ranks || !kernels::can_combine(dtype, op)) {
    result.copy_(reduce_in_tree(values, op));
    return;
  }
  if (result.numel() == 0) return;
  std::vector<const std::byte*> inputs;
  for (const auto& value : values)
    inputs.push_back(static_cast<const std::byte*>(value.const_data_ptr()));
  std::byte* outputs[] = {static_cast<std::byte*>(result.mutable_data_ptr())};
  kernels::combine(
      {.dtype = dtype, .op = op, .inputs = inputs, .outputs = outputs, .elements = result.numel()});
}

}  // namespace lockstep
