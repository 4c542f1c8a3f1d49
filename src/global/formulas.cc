#include "global/formulas.h"

#include "base/check.h"
#include "dispatch/call.h"
#include "dispatch/key.h"
#include "global/global_tensor.h"

#include <lockstep/global/redistribute.h>
#include <lockstep/global/tensor.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cumprod_backward.h>
#include <ATen/ops/cumprod_backward_native.h>
#include <ATen/ops/diagonal_backward.h>
#include <ATen/ops/nanquantile_native.h>
#include <ATen/ops/one_hot_native.h>
#include <ATen/ops/quantile_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::global {
namespace {

// Of max, min, median, sort and topk along a dim: the chosen elements get the gradient. LibTorch's
// own begins with zeros(sizes), which is the only difference.
at::Tensor gradient_of_selection(const at::Tensor& gradient, std::int64_t dim,
                                 const at::Tensor& indices, c10::SymIntArrayRef sizes,
                                 bool keepdim) {
  bool lacks_dim = !keepdim && !sizes.empty();
  at::Tensor values = lacks_dim ? gradient.unsqueeze(dim) : gradient;
  at::Tensor places = lacks_dim ? indices.unsqueeze(dim) : indices;
  return gradient.new_zeros_symint(sizes).scatter(dim, places, values);
}

// The same for cummax and cummin.
at::Tensor gradient_of_extremes(const at::Tensor& gradient, const at::Tensor& input,
                                const at::Tensor& indices, std::int64_t dim) {
  if (input.numel() == 0) return input;
  return gradient.new_zeros_symint(input.sym_sizes()).scatter_add(dim, indices, gradient);
}

at::Tensor gradient_of_trace(const at::Tensor& gradient, c10::SymIntArrayRef sizes) {
  const c10::SymInt length = sizes.at(0) < sizes.at(1) ? sizes[0] : sizes[1];
  return at::diagonal_backward_symint(gradient.expand_symint({length}), sizes, 0, 0, 1);
}

// LibTorch's own writes to plain tensors where a factor is 0. A rank has whole rows of factors.
at::Tensor gradient_of_products(const at::Tensor& gradient, const at::Tensor& input,
                                std::int64_t dim, const at::Tensor& output) {
  if (global_of(gradient) == nullptr)
    return at::native::cumprod_backward(gradient, input, dim, output);
  const bool is_differentiated =
      at::GradMode::is_enabled() && (gradient.requires_grad() || input.requires_grad());
  check(!is_differentiated, "aten::cumprod_backward: it has no gradient on global tensors");
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::cumprod_backward(gradient, input, dim, output);
}

at::Tensor one_hot(const at::Tensor& classes, std::int64_t count) {
  if (global_of(classes) == nullptr) return at::native::one_hot(classes, count);
  check(classes.scalar_type() == at::kLong && (count > 0 || classes.numel() > 0),
        "aten::one_hot: expected an int64 tensor, and a number of classes if it has no elements, "
        "found {} of {} elements",
        c10::toString(classes.scalar_type()), classes.numel());
  if (count < 0) count = classes.max().item<std::int64_t>() + 1;
  std::vector<std::int64_t> sizes = classes.sizes().vec();
  sizes.push_back(count);
  return classes.new_zeros(sizes).scatter(-1, classes.unsqueeze(-1), 1);
}

at::Tensor plain(const at::Tensor& tensor) {
  return global_of(tensor) == nullptr ? tensor : full_tensor(tensor);
}

// LibTorch's own reads the memory of its argument from 2.15 on.
template <typename Compute>
at::Tensor of_whole(const at::Tensor& values, const Compute& compute) {
  if (global_of(values) == nullptr) return compute(values);
  const Mesh mesh = mesh_of(values);
  const Placements whole(mesh.axes().size());
  return from_local(compute(local_tensor(redistribute(values, whole))), mesh, whole);
}

using Dim = std::optional<std::int64_t>;

at::Tensor quantiles(const at::Tensor& values, const at::Tensor& which, Dim dim, bool keepdim,
                     c10::string_view interpolation) {
  return of_whole(values, [&](const at::Tensor& whole) {
    return at::native::quantile(whole, plain(which), dim, keepdim, interpolation);
  });
}

at::Tensor quantile(const at::Tensor& values, double which, Dim dim, bool keepdim,
                    c10::string_view interpolation) {
  return of_whole(values, [&](const at::Tensor& whole) {
    return at::native::quantile(whole, which, dim, keepdim, interpolation);
  });
}

at::Tensor nan_quantiles(const at::Tensor& values, const at::Tensor& which, Dim dim, bool keepdim,
                         c10::string_view interpolation) {
  return of_whole(values, [&](const at::Tensor& whole) {
    return at::native::nanquantile(whole, plain(which), dim, keepdim, interpolation);
  });
}

at::Tensor nan_quantile(const at::Tensor& values, double which, Dim dim, bool keepdim,
                        c10::string_view interpolation) {
  return of_whole(values, [&](const at::Tensor& whole) {
    return at::native::nanquantile(whole, which, dim, keepdim, interpolation);
  });
}

void replace_for(torch::Library& library) {
  library.impl("value_selecting_reduction_backward", &gradient_of_selection);
  library.impl("cummaxmin_backward", &gradient_of_extremes);
  library.impl("trace_backward", &gradient_of_trace);
  library.impl("cumprod_backward", &gradient_of_products);
  library.impl("one_hot", &one_hot);
  library.impl("quantile", &quantiles);
  library.impl("quantile.scalar", &quantile);
  library.impl("nanquantile", &nan_quantiles);
  library.impl("nanquantile.scalar", &nan_quantile);
}

}  // namespace

void replace_formulas() {
  // For the keys of autograd, by which the operation comes first.
  using torch::Library;
  static auto* libraries = [] {
    auto* made = new std::vector<Library>;
    for (c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA})
      replace_for(made->emplace_back(Library::IMPL, "aten", key, __FILE__, __LINE__));
    // Made of others, this operation does not come to the interceptors by itself.
    made->emplace_back(Library::IMPL, "aten", dispatch::our_key, __FILE__, __LINE__)
        .impl("cumprod_backward",
              torch::CppFunction::makeFromBoxedFunction<&dispatch::intercept>());
    return made;
  }();
  (void)libraries;
}

}  // namespace lockstep::global
