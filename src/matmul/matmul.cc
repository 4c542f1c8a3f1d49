#include "matmul/matmul.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/never_destroyed.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <exception>

namespace at::native {

// Exported by libtorch_cpu.so without a header: result = alpha a b + beta result, also for batches.
// Declared weak so that this code links with a LibTorch that does not export it; this code is then
// not used.
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                 float alpha);

}  // namespace at::native

namespace lockstep::matmul {
namespace {

// The number of multiplications above which oneDNN is not slower than MKL, measured with one and
// two threads: docs/decisions/0110-which-library-multiplies.md.
constexpr std::int64_t least_multiplications = std::int64_t{1} << 21;
// Products with a vector are memory-bound, and MKL has special kernels for them.
constexpr std::int64_t least_size = 4;

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

enum class Order { rows, columns };  // stored row by row, or column by column

// Returns the storage order of a matrix, or of all matrices of a batch without gaps between them.
// Returns std::nullopt if the tensor has neither order.
std::optional<Order> order_of(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const std::size_t rows = sizes.size() - 2, columns = sizes.size() - 1;
  if (rows == 1 && strides[0] != sizes[1] * sizes[2]) return {};
  if (strides[columns] == 1 && strides[rows] == sizes[columns]) return Order::rows;
  if (strides[rows] == 1 && strides[columns] == sizes[rows]) return Order::columns;
  return {};
}

// Returns true if the product of a [m, k] and b [k, n], or of batches of them, goes to oneDNN:
// float32 matrices in CPU memory that are stored by row or by column without gaps, and large enough
// to be worth the ten microseconds of a oneDNN call.
bool fit(const at::Tensor& a, const at::Tensor& b) {
  const auto dims = a.dim();
  if ((dims != 2 && dims != 3) || b.dim() != dims || !is_plain(a) || !is_plain(b)) return false;
  const std::int64_t batch = dims == 3 ? a.size(0) : 1;
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  // let LibTorch report the error
  if (b.size(-2) != k || (dims == 3 && b.size(0) != batch)) return false;
  return std::min({m, k, n}) >= least_size && batch > 0 &&
         m * n * k >= least_multiplications / batch && order_of(a) && order_of(b);
}

// Returns true if `bias` can be added to every row of a product with `columns` columns.
bool is_bias(const at::Tensor& bias, std::int64_t columns) {
  return bias.dim() == 1 && bias.size(0) == columns && is_plain(bias) && bias.stride(0) == 1;
}

// These functions use the oneDNN build inside LibTorch through LibTorch's functions, because
// libtorch_cpu.so does not export oneDNN's own interface.
//
// oneDNN compiles a kernel for each shape, which takes about a millisecond and half a megabyte, and
// caches 1024 kernels (ONEDNN_PRIMITIVE_CACHE_CAPACITY). A program whose batches vary in length
// would compile new kernels all the time. The dim that counts tokens or rows of a batch is
// therefore cut into pieces with five significant bits: 1000 rows become 992 and 8. All lengths up
// to 4096 then need kernels of only 144 sizes, most round lengths are one piece, and results depend
// only on the shapes.

using Scalars = c10::List<std::optional<at::Scalar>>;
using Linear = at::Tensor(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, std::string_view unary,
                          Scalars scalars, std::optional<std::string_view> algorithm);

constexpr const char* linear_name = "mkldnn::_linear_pointwise";

// Multiplies rows by a transposed weight and adds a bias in the same pass over the result.
at::Tensor linear_product(const at::Tensor& a, const at::Tensor& b,
                          const std::optional<at::Tensor>& bias) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow(linear_name, "").typed<Linear>();
  static const Scalars none;
  return operation.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), a, b.t(), bias, "none",
                              none, "");
}

void multiply_rows(const at::Tensor& a, const at::Tensor& b, at::Tensor& result) {
  const std::int64_t rows = a.size(0);
  for (std::int64_t begin = 0, size = 0; begin < rows; begin += size) {
    // oneDNN uses another order of additions for a single row: compute the last row together with
    // its neighbour.
    if (rows - begin == 1) --begin;
    size = onednn::next_piece(rows - begin);
    at::Tensor piece = result.narrow(0, begin, size);
    at::native::mkldnn_matmul(a.narrow(0, begin, size), b, piece, 0, 1);
  }
}

// Adds the pieces with LibTorch: for some sizes oneDNN writes outside of the result when it
// accumulates.
void multiply_columns(const at::Tensor& a, const at::Tensor& b, at::Tensor& result) {
  const std::int64_t columns = a.size(1);
  at::Tensor piece;
  for (std::int64_t begin = 0, size = 0; begin < columns; begin += size) {
    size = onednn::next_piece(columns - begin);
    if (begin > 0 && !piece.defined()) piece = at::empty_like(result);
    at::native::mkldnn_matmul(a.narrow(1, begin, size), b.narrow(0, begin, size),
                              begin > 0 ? piece : result, 0, 1);
    if (begin > 0) result.add_(piece);
  }
}

at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() == 2) return at::empty({a.size(0), b.size(1)}, a.options());
  return at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
}

// Returns a times b, plus `bias` in every row if given. The arguments must fit(), and
// onednn::missing() must be empty.
at::Tensor product(const at::Tensor& a, const at::Tensor& b,
                   const std::optional<at::Tensor>& bias = {}) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const bool is_batch = a.dim() == 3, by_rows = order_of(a) == Order::rows;
  if (!is_batch && by_rows && onednn::next_piece(a.size(0)) == a.size(0))
    return linear_product(a, b, bias);
  at::Tensor result = empty_product(a, b);
  if (is_batch)
    at::native::mkldnn_matmul(a, b, result, 0, 1);
  else if (by_rows)
    multiply_rows(a, b, result);
  else
    multiply_columns(a, b, result);
  if (bias) result.add_(*bias);
  return result;
}

// Returns a tensor of small integers, whose sum is exact in every order of additions.
at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes)).remainder(7).sub(3).to(at::kFloat).view(sizes);
}

bool is_right(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(product(a, b), a.dim() == 2 ? at::cpu::mm(a, b) : at::cpu::bmm(a, b));
}

std::string try_products() {
  if (!at::hasMKLDNN()) return "this LibTorch was built without oneDNN";
  if (&at::native::mkldnn_matmul == nullptr) return "this LibTorch does not export mkldnn_matmul";
  try {
    const c10::InferenceMode off(false);
    const at::NoGradGuard no_grad;
    bool right = is_right(numbers({3, 19, 33}), numbers({3, 33, 21}));
    for (const std::int64_t rows : {20, 33}) {  // one piece, and two
      const at::Tensor a = numbers({rows, 33}), b = numbers({33, 21}), bias = numbers({21});
      const at::Tensor by_columns = numbers({rows, 19}).t(), weight = numbers({21, 33}).t();
      right = right && is_right(a, b) && is_right(a, weight) &&
              is_right(by_columns, numbers({rows, 21})) &&
              at::equal(product(a, weight, bias), at::cpu::mm(a, weight).add(bias));
    }
    return right ? "" : "oneDNN computed a wrong product";
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    return std::string(text.substr(0, text.find('\n')));
  }
}

constinit std::atomic<bool> chosen{false};
constinit std::atomic<std::uint64_t> products{0};

bool goes_to_onednn(const at::Tensor& a, const at::Tensor& b) {
  if (!chosen.load(std::memory_order_relaxed) || !fit(a, b)) return false;
  return at::globalContext().userEnabledMkldnn() && onednn::missing().empty();
}

at::Tensor by_onednn(const at::Tensor& a, const at::Tensor& b,
                     const std::optional<at::Tensor>& bias = {}) {
  products.fetch_add(1, std::memory_order_relaxed);
  return product(a, b, bias);
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  return goes_to_onednn(a, b) ? by_onednn(a, b) : at::cpu::mm(a, b);
}

at::Tensor bmm(const at::Tensor& a, const at::Tensor& b) {
  return goes_to_onednn(a, b) ? by_onednn(a, b) : at::cpu::bmm(a, b);
}

at::Tensor addmm(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  const bool is_linear = beta.equal(1) && alpha.equal(1) && goes_to_onednn(a, b) &&
                         is_bias(bias, b.size(1)) && order_of(a) == Order::rows;
  return is_linear ? by_onednn(a, b, bias) : at::cpu::addmm(bias, a, b, beta, alpha);
}

// Discards warnings: LibTorch warns once per process when a kernel replaces another.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void register_kernels() {
  static const NeverDestroyed kept([] {
    NoWarnings none;
    const c10::WarningUtils::WarningHandlerGuard guard(&none);
    torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    library.impl("mm", TORCH_FN(mm));
    library.impl("addmm", TORCH_FN(addmm));
    library.impl("bmm", TORCH_FN(bmm));
    return library;
  }());
}

}  // namespace

namespace onednn {

const std::string& missing() {
  static const std::string found = try_products();
  return found;
}

std::int64_t next_piece(std::int64_t count) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(count));
  const int dropped = std::max(bits - 5, 0);
  return count >> dropped << dropped;
}

}  // namespace onednn

bool mkl_takes_narrow_way() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return at::hasMKL() && !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

void choose(std::optional<bool> onednn) {
  const auto asked = onednn ? onednn : environment::flag("LOCKSTEP_ONEDNN_MATMUL");
  if (asked.value_or(false))
    check_input(
        onednn::missing().empty(),
        "init: LOCKSTEP_ONEDNN_MATMUL or onednn_matmul asks for matrix products by oneDNN, but {}",
        onednn::missing());
  const bool on = asked.value_or(mkl_takes_narrow_way());
  if (on) register_kernels();
  chosen = on;
}

bool is_onednn() { return chosen && onednn::missing().empty(); }

std::string_view library() { return is_onednn() ? "oneDNN" : "LibTorch's own"; }

std::uint64_t onednn_products() { return products; }

}  // namespace lockstep::matmul
