#include "global/autograd.h"

#include "base/check.h"
#include "dispatch/call.h"
#include "dispatch/devices.h"
#include "dispatch/key.h"
#include "global/attention.h"
#include "global/convert.h"
#include "global/global_tensor.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cumprod_backward.h>
#include <ATen/ops/cumprod_backward_native.h>
#include <ATen/ops/diagonal_backward.h>
#include <ATen/ops/nanquantile_native.h>
#include <ATen/ops/one_hot_native.h>
#include <ATen/ops/quantile_native.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::global {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// State that a function saves for its gradient.
struct Origin : torch::CustomClassHolder {
  Origin(Mesh mesh, SpecPtr spec) : mesh(std::move(mesh)), spec(std::move(spec)) {}
  Mesh mesh;
  SpecPtr spec;
};

void remember(AutogradContext* context, const Mesh& mesh, const SpecPtr& spec) {
  context->saved_data["origin"] =
      c10::IValue::make_capsule(c10::make_intrusive<Origin>(mesh, spec));
}

const Origin& origin_of(AutogradContext* context) {
  return static_cast<const Origin&>(*context->saved_data.at("origin").toCapsule());
}

// Returns the placements of a tensor's gradient. The gradient of a Partial tensor is not Partial:
// every rank has the whole gradient.
PlacementList of_gradient(PlacementList placements) {
  for (Placement& one : placements)
    if (one.is_partial()) one = Replicate();
  return placements;
}

// Returns a spec with row-major strides. The strides of `local` are not used, because they may
// differ between ranks: a shard with one element in a dim has arbitrary strides there.
SpecPtr with(const Spec& spec, const PlacementList& placements, const at::Tensor& local) {
  return spec.context->spec(placements, spec.sizes, c10::contiguous_strides(spec.sizes),
                            local.scalar_type(), local.device());
}

// Returns an alias: a write to either tensor bumps the version of both.
at::Tensor alias_of(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor alias = tensor.alias();
  if (!alias.is_inference() && !tensor.is_inference())
    alias.unsafeGetTensorImpl()->set_version_counter(
        tensor.unsafeGetTensorImpl()->version_counter());
  return alias;
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

// Returns the tensor with other placements, in its own memory.
at::Tensor moved(const at::Tensor& tensor, const PlacementList& placements) {
  GlobalTensor& global = *global_of(tensor);
  check_is_fresh(global, "redistribute");
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor local = converted(global.local, *global.spec, placements);
  if (same_memory(local, global.local) || !local.is_contiguous())
    local = local.clone(at::MemoryFormat::Contiguous);
  return wrap(local, with(*global.spec, placements, local), global.mesh);
}

struct Redistribute : Function<Redistribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const PlacementList& placements) {
    GlobalTensor& global = *global_of(tensor);
    remember(context, global.mesh, global.spec);
    if (global.spec->placements == placements) return tensor.view_as(tensor);
    return moved(tensor, placements);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    PlacementList back = of_gradient(origin_of(context).spec->placements);
    return {redistribute(gradients[0], {back.begin(), back.end()}), {}};
  }
};

struct FromLocal : Function<FromLocal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, const Mesh& mesh,
                            const SpecPtr& spec) {
    remember(context, mesh, spec);
    at::Tensor tensor = wrap(alias_of(local), spec, mesh);
    global_of(tensor)->share_with_plain();
    return tensor;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    PlacementList back = of_gradient(origin_of(context).spec->placements);
    return {to_local(redistribute(gradients[0], {back.begin(), back.end()})), {}, {}};
  }
};

struct ToLocal : Function<ToLocal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor) {
    GlobalTensor& global = *global_of(tensor);
    remember(context, global.mesh, global.spec);
    check_is_fresh(global, "local_tensor");
    global.share_with_plain();
    at::Tensor alias = alias_of(global.local);
    if (!alias.is_inference() && !global.owner().local.is_inference())
      alias.unsafeGetTensorImpl()->set_version_counter(
          global.owner().local.unsafeGetTensorImpl()->version_counter());
    return alias;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Origin& origin = origin_of(context);
    return {from_local(gradients[0].contiguous(), origin.mesh,
                       with(*origin.spec, of_gradient(origin.spec->placements), gradients[0]))};
  }
};

// Returns the first rank's values.
at::Tensor values_of_first(const at::Tensor& tensor, const Spec& spec) {
  MeshContext& mesh_context = *spec.context;
  at::Tensor whole = tensor.contiguous();
  if (mesh_context.all().size() > 1 && whole.numel() > 0) {
    if (whole.is_same(tensor) || same_memory(whole, tensor)) whole = whole.clone();
    mesh_context.all().broadcast(whole, 0, {.tag = "distribute"}).wait();
    std::lock_guard lock(mesh_context.traffic_mutex);
    ++mesh_context.traffic.broadcasts;
    if (!mesh_context.all().is_root())
      mesh_context.traffic.bytes += static_cast<std::int64_t>(whole.nbytes());
  }
  return whole;
}

struct Distribute : Function<Distribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const Mesh& mesh,
                            const PlacementList& placements) {
    MeshContext& mesh_context = MeshContext::of(mesh);
    SpecPtr all = mesh_context.spec(mesh_context.replicated(), tensor.sizes(),
                                    c10::contiguous_strides(tensor.sizes()), tensor.scalar_type(),
                                    tensor.device());
    remember(context, mesh, all);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor whole = values_of_first(tensor, *all);
    at::Tensor part = converted(whole, *all, placements);
    bool is_its_own = part.is_contiguous() && part.storage().nbytes() == part.nbytes();
    if (!is_its_own || same_memory(part, tensor)) part = part.clone(at::MemoryFormat::Contiguous);
    return wrap(part,
                mesh_context.spec(placements, all->sizes, all->strides, all->dtype, all->device),
                mesh);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const PlacementList& all = origin_of(context).spec->placements;
    return {to_local(redistribute(gradients[0], {all.begin(), all.end()})), {}, {}};
  }
};

}  // namespace

at::Tensor distributed(const at::Tensor& tensor, const Mesh& mesh,
                       const PlacementList& placements) {
  return Distribute::apply(tensor, mesh, placements);
}

at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const SpecPtr& spec) {
  return FromLocal::apply(local, mesh, spec);
}

at::Tensor to_local(const at::Tensor& tensor) { return ToLocal::apply(tensor); }

at::Tensor redistributed(const at::Tensor& tensor, const PlacementList& placements) {
  return Redistribute::apply(tensor, placements);
}

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
  static const auto* libraries = [] {
    auto made = std::make_unique<std::vector<Library>>();
    for (const c10::BackendComponent device : dispatch::devices)
      replace_for(made->emplace_back(Library::IMPL, "aten", dispatch::autograd_key(device),
                                     __FILE__, __LINE__));
    // This operation is composite, so it does not reach the interceptors by itself.
    Library& ours =
        made->emplace_back(Library::IMPL, "aten", dispatch::our_key, __FILE__, __LINE__);
    ours.impl("cumprod_backward",
              torch::CppFunction::makeFromBoxedFunction<&dispatch::intercept>());
    // Inference mode excludes the keys of autograd.
    replace_attention(ours);
    return made.release();
  }();
  (void)libraries;
}

}  // namespace lockstep::global
