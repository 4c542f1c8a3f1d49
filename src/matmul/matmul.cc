#include "matmul/matmul.h"

#include "base/check.h"
#include "base/environment.h"
#include "matmul/onednn.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>

namespace lockstep::matmul {
namespace {

constinit std::atomic<bool> chosen{false};
constinit std::atomic<std::uint64_t> products{0};

bool goes_to_onednn(const at::Tensor& a, const at::Tensor& b) {
  if (!chosen.load(std::memory_order_relaxed) || !fit(a, b)) return false;
  return at::globalContext().userEnabledMkldnn() && onednn::missing().empty();
}

at::Tensor by_onednn(const at::Tensor& a, const at::Tensor& b,
                     const std::optional<at::Tensor>& bias = {}) {
  products.fetch_add(1, std::memory_order_relaxed);
  return onednn::product(a, b, bias);
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
  static const auto* kept = [] {
    NoWarnings none;
    const c10::WarningUtils::WarningHandlerGuard guard(&none);
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                    c10::DispatchKey::CPU, __FILE__, __LINE__);
    library->impl("mm", TORCH_FN(mm));
    library->impl("addmm", TORCH_FN(addmm));
    library->impl("bmm", TORCH_FN(bmm));
    return library.release();
  }();
  static_cast<void>(kept);
}

}  // namespace

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
