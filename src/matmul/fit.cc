#include "matmul/fit.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::matmul {
namespace {

// LibTorch 2.13 removed named dims, which results inherit.
template <class Tensor>
bool has_names(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) return tensor.has_names();
  return false;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
         tensor.scalar_type() == at::kFloat && !tensor.is_neg() && !has_names(tensor);
}

}  // namespace

std::optional<Order> order_of(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const std::size_t rows = sizes.size() - 2, columns = sizes.size() - 1;
  if (rows == 1 && strides[0] != sizes[1] * sizes[2]) return {};
  if (strides[columns] == 1 && strides[rows] == sizes[columns]) return Order::rows;
  if (strides[rows] == 1 && strides[columns] == sizes[rows]) return Order::columns;
  return {};
}

bool fit(const at::Tensor& a, const at::Tensor& b) {
  const auto dims = a.dim();
  if ((dims != 2 && dims != 3) || b.dim() != dims || !is_plain(a) || !is_plain(b)) return false;
  const std::int64_t batch = dims == 3 ? a.size(0) : 1;
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  // LibTorch reports the error
  if (b.size(-2) != k || (dims == 3 && b.size(0) != batch)) return false;
  return std::min({m, k, n}) >= least_size && batch > 0 &&
         m * n * k >= least_multiplications / batch && order_of(a) && order_of(b);
}

bool is_bias(const at::Tensor& bias, std::int64_t columns) {
  return bias.dim() == 1 && bias.size(0) == columns && is_plain(bias) && bias.stride(0) == 1;
}

}  // namespace lockstep::matmul
