#include "global/autograd.h"

#include "base/check.h"
#include "base/never_destroyed.h"
#include "dispatch/call.h"
#include "dispatch/devices.h"
#include "dispatch/key.h"
#include "global/global_tensor.h"
#include "global/mesh_context.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_attention_math_native.h>
#include <ATen/ops/cumprod_backward.h>
#include <ATen/ops/cumprod_backward_native.h>
#include <ATen/ops/diagonal_backward.h>
#include <ATen/ops/nanquantile_native.h>
#include <ATen/ops/one_hot_native.h>
#include <ATen/ops/quantile_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace lockstep::global {
namespace {

// Gradient of max, min, median, sort and topk along a dim: the chosen elements get the gradient.
// Differs from LibTorch's formula in one point only: LibTorch begins with zeros(sizes), which is a
// plain tensor.
at::Tensor gradient_of_selection(const at::Tensor& gradient, std::int64_t dim,
                                 const at::Tensor& indices, c10::SymIntArrayRef sizes,
                                 bool keepdim) {
  bool lacks_dim = !keepdim && !sizes.empty();
  at::Tensor values = lacks_dim ? gradient.unsqueeze(dim) : gradient;
  at::Tensor places = lacks_dim ? indices.unsqueeze(dim) : indices;
  return gradient.new_zeros_symint(sizes).scatter(dim, places, values);
}

// Likewise for cummax and cummin.
at::Tensor gradient_of_extremes(const at::Tensor& gradient, const at::Tensor& input,
                                const at::Tensor& indices, std::int64_t dim) {
  if (input.numel() == 0) return input;
  return gradient.new_zeros_symint(input.sym_sizes()).scatter_add(dim, indices, gradient);
}

at::Tensor gradient_of_trace(const at::Tensor& gradient, c10::SymIntArrayRef sizes) {
  const c10::SymInt length = sizes.at(0) < sizes.at(1) ? sizes[0] : sizes[1];
  return at::diagonal_backward_symint(gradient.expand_symint({length}), sizes, 0, 0, 1);
}

// Gradient of cumprod. LibTorch's formula writes to plain tensors if a factor is 0. A rank has
// whole rows of factors.
at::Tensor gradient_of_products(const at::Tensor& gradient, const at::Tensor& input,
                                std::int64_t dim, const at::Tensor& output) {
  if (global_of(gradient) == nullptr)
    return at::native::cumprod_backward(gradient, input, dim, output);
  const bool is_differentiated =
      at::GradMode::is_enabled() && (gradient.requires_grad() || input.requires_grad());
  check(!is_differentiated, "aten::cumprod_backward: not supported on global tensors");
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

double whole_of(double which) { return which; }
at::Tensor whole_of(const at::Tensor& which) { return plain(which); }

using Dim = std::optional<std::int64_t>;
template <typename Which>
using Quantile = at::Tensor(const at::Tensor&, Which, Dim, bool, c10::string_view);

// From LibTorch 2.15 on, its formula `compute` reads the memory of its argument.
template <typename Which, Quantile<Which>* compute>
at::Tensor quantile_of_whole(const at::Tensor& values, Which which, Dim dim, bool keepdim,
                             c10::string_view interpolation) {
  if (global_of(values) == nullptr)
    return compute(values, whole_of(which), dim, keepdim, interpolation);
  const Mesh mesh = mesh_of(values);
  const Placements whole(mesh.axes().size());
  return from_local(compute(local_tensor(redistribute(values, whole)), whole_of(which), dim,
                            keepdim, interpolation),
                    mesh, whole);
}

// Scaled dot-product attention of global tensors. If PlacementHints::heads_axis is set, it computes
// attention by heads (DeepSpeed Ulysses: Jacobs et al., arXiv:2309.14509): queries, keys and values
// that are sharded along the sequence are sharded along heads during attention. One all_to_all
// converts each of them, and another one converts the result back. Backward has equally many.

constexpr int heads_dim = 1, tokens_dim = 2;

// Returns the tensor with heads sharded along the axis instead of tokens.
at::Tensor with_heads(const at::Tensor& tensor, int axis, const char* what) {
  const GlobalTensor* found = global_of(tensor);
  if (found == nullptr) return tensor;
  Placements to(found->spec->placements.begin(), found->spec->placements.end());
  Placement& now = to[static_cast<std::size_t>(axis)];
  if (!now.is_shard_of(tokens_dim)) return tensor;
  const std::int64_t heads = found->local.size(heads_dim);
  const int ranks = found->spec->context->place()[static_cast<std::size_t>(axis)].size;
  check(heads % ranks == 0,
        "context parallel: attention by heads (ulysses) needs a number of heads divisible by the "
        "number of ranks, {}, found {} of {} on a rank; ring attention takes any",
        ranks, heads, what);
  now = Shard(heads_dim);
  return redistribute(tensor, to);
}

int heads_axis_of(const at::Tensor& query) {
  const GlobalTensor* found = query.dim() == 4 ? global_of(query) : nullptr;
  if (found == nullptr) return -1;
  const int axis = found->spec->context->hints.heads_axis;
  if (axis < 0) return -1;
  return found->spec->placements[static_cast<std::size_t>(axis)].is_shard_of(tokens_dim) ? axis
                                                                                         : -1;
}

// Implements aten::scaled_dot_product_attention, also for plain tensors.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                     std::optional<double> scale, bool is_grouped) {
  const int axis = heads_axis_of(query);
  if (axis < 0)
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, is_grouped);
  const auto& placements = global_of(query)->spec->placements;
  const Placements back(placements.begin(), placements.end());
  const at::Tensor result = at::native::scaled_dot_product_attention(
      with_heads(query, axis, "queries"), with_heads(key, axis, "keys"),
      with_heads(value, axis, "values"), mask, dropout, is_causal, scale, is_grouped);
  return redistribute(result, back);
}

// Implements aten::_scaled_dot_product_attention_math, which LibTorch uses where it has no fused
// kernel. The causal mask of global tensors is global.
std::tuple<at::Tensor, at::Tensor> attention_formula(const at::Tensor& query, const at::Tensor& key,
                                                     const at::Tensor& value,
                                                     const std::optional<at::Tensor>& mask,
                                                     double dropout, bool is_causal,
                                                     const std::optional<at::Tensor>& dropout_mask,
                                                     std::optional<double> scale, bool is_grouped) {
  std::optional<at::Tensor> bias = mask;
  if (is_causal && !mask && is_global(query)) {  // LibTorch refuses a mask beside is_causal
    constexpr double infinity = std::numeric_limits<double>::infinity();
    bias = query.new_full({query.size(-2), key.size(-2)}, -infinity).triu(1);
    is_causal = false;
  }
  return at::native::_scaled_dot_product_attention_math(query, key, value, bias, dropout, is_causal,
                                                        dropout_mask, scale, is_grouped);
}

void replace_attention(torch::Library& library) {
  library.impl("scaled_dot_product_attention", &attention);
  library.impl("_scaled_dot_product_attention_math", &attention_formula);
}

void replace_for(torch::Library& library) {
  library.impl("value_selecting_reduction_backward", &gradient_of_selection);
  library.impl("cummaxmin_backward", &gradient_of_extremes);
  library.impl("trace_backward", &gradient_of_trace);
  library.impl("cumprod_backward", &gradient_of_products);
  library.impl("one_hot", &one_hot);
  replace_attention(library);
  using Tensor = const at::Tensor&;
  library.impl("quantile", &quantile_of_whole<Tensor, at::native::quantile>);
  library.impl("quantile.scalar", &quantile_of_whole<double, at::native::quantile>);
  library.impl("nanquantile", &quantile_of_whole<Tensor, at::native::nanquantile>);
  library.impl("nanquantile.scalar", &quantile_of_whole<double, at::native::nanquantile>);
}

}  // namespace

void replace_formulas() {
  // Registered for the dispatch keys of autograd, which come first.
  using torch::Library;
  static const NeverDestroyed libraries([] {
    std::vector<Library> made;
    for (const c10::BackendComponent device : dispatch::devices)
      replace_for(made.emplace_back(Library::IMPL, "aten", dispatch::autograd_key(device), __FILE__,
                                    __LINE__));
    // This operation is composite, so it does not reach the interceptors by itself.
    Library& ours = made.emplace_back(Library::IMPL, "aten", dispatch::our_key, __FILE__, __LINE__);
    ours.impl("cumprod_backward",
              torch::CppFunction::makeFromBoxedFunction<&dispatch::intercept>());
    // Inference mode excludes the keys of autograd.
    replace_attention(ours);
    return made;
  }());
}

}  // namespace lockstep::global
