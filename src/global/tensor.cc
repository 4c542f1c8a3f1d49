#include <lockstep/global/tensor.h>

#include "base/check.h"
#include "global/convert.h"
#include "global/decide.h"
#include "global/global_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

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
    return {local_tensor(redistribute(gradients[0], {back.begin(), back.end()})), {}, {}};
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
    return {
        FromLocal::apply(gradients[0].contiguous(), origin.mesh,
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
    return {local_tensor(redistribute(gradients[0], {all.begin(), all.end()})), {}, {}};
  }
};

}  // namespace
}  // namespace lockstep::global

namespace lockstep {

using global::Dims;
using global::MeshContext;
using global::PlacementList;
using global::SpecPtr;

bool is_global(const at::Tensor& tensor) { return global::global_of(tensor) != nullptr; }

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements) {
  check(tensor.defined() && !is_global(tensor),
        "distribute: expected a plain tensor, found {}; redistribute() changes placements",
        tensor.defined() ? "a global one" : "an undefined one");
  check(tensor.layout() == at::kStrided, "distribute: expected a dense tensor, found layout {}",
        c10::str(tensor.layout()));
  MeshContext& context = MeshContext::of(mesh);
  PlacementList checked =
      global::checked(placements, tensor.sizes(), context.place(), "distribute");
  for (Placement one : checked)
    check(!one.is_partial(),
          "distribute: expected Replicate or Shard, found {}; from_local() takes what ranks have",
          describe(placements));
  return global::Distribute::apply(tensor, mesh, checked);
}

void distribute_(const at::Tensor& parameter, const Mesh& mesh, const Placements& placements) {
  at::NoGradGuard no_grad;
  at::Tensor(parameter).set_data(distribute(parameter.detach(), mesh, placements));
}

at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const Placements& placements,
                      std::optional<std::vector<std::int64_t>> sizes) {
  check(local.defined() && !is_global(local) && local.layout() == at::kStrided,
        "from_local: expected a plain dense tensor, found another");
  MeshContext& context = MeshContext::of(mesh);
  if (!sizes) {
    sizes = local.sizes().vec();
    for (std::size_t axis = 0; axis < placements.size() && axis < context.place().size(); ++axis) {
      int dim = placements[axis].dim();
      if (dim < 0) dim += static_cast<int>(local.dim());
      if (placements[axis].is_shard() && dim >= 0 && dim < local.dim())
        (*sizes)[static_cast<std::size_t>(dim)] *= context.place()[axis].size;
    }
  }
  PlacementList checked = global::checked(placements, *sizes, context.place(), "from_local");
  Dims expected = global::local_sizes(*sizes, checked, context.place());
  check(local.sizes() == at::IntArrayRef(expected),
        "from_local: expected sizes {} of this rank's part of {}, found {}",
        c10::str(at::IntArrayRef(expected)), c10::str(at::IntArrayRef(*sizes)),
        c10::str(local.sizes()));
  // Uses row-major strides, because the strides of local parts may differ between ranks.
  SpecPtr spec = context.spec(checked, *sizes, c10::contiguous_strides(*sizes), local.scalar_type(),
                              local.device());
  return global::FromLocal::apply(local, mesh, spec);
}

at::Tensor local_tensor(const at::Tensor& tensor) {
  (void)global::expect_global(tensor, "local_tensor");
  return global::ToLocal::apply(tensor);
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements) {
  const global::Spec& spec = *global::expect_global(tensor, "redistribute").spec;
  return global::Redistribute::apply(
      tensor, global::checked(placements, spec.sizes, spec.context->place(), "redistribute"));
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  global::GlobalTensor& found = global::expect_global(tensor, "full_tensor");
  return local_tensor(redistribute(tensor, Placements(found.spec->placements.size())));
}

Placements placements(const at::Tensor& tensor) {
  const auto& found = global::expect_global(tensor, "placements").spec->placements;
  return {found.begin(), found.end()};
}

Mesh mesh_of(const at::Tensor& tensor) { return global::expect_global(tensor, "mesh_of").mesh; }

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text =
      formatted("{} {}", c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()));
  global::GlobalTensor* found = global::global_of(tensor);
  if (found == nullptr) return text + ", not global";
  return formatted("{} on mesh {}: {}, local {}", text, found->spec->context->name(),
                   describe(found->spec->placements), c10::str(found->local.sizes()));
}

void set_global_options(const Mesh& mesh, GlobalOptions options) {
  MeshContext& context = MeshContext::of(mesh);
  context.options = options;
  context.decisions().clear();
}

Traffic traffic(const Mesh& mesh) {
  MeshContext& context = MeshContext::of(mesh);
  std::lock_guard lock(context.traffic_mutex);
  return context.traffic;
}

void reset_traffic(const Mesh& mesh) {
  MeshContext& context = MeshContext::of(mesh);
  std::lock_guard lock(context.traffic_mutex);
  context.traffic = {};
}

}  // namespace lockstep
