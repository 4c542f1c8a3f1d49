#include "global/autograd.h"

#include "global/convert.h"
#include "global/global_tensor.h"

#include <lockstep/global/redistribute.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::global {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a function remembers for its gradient.
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

// A gradient is no sum of parts where the tensor is one: every rank's part has all of it.
PlacementList of_gradient(PlacementList placements) {
  for (Placement& one : placements)
    if (one.is_partial()) one = Replicate();
  return placements;
}

// Strides are row-major whatever those of `local` are: ranks whose shards have one element in a dim
// could read others from theirs.
SpecPtr with(const Spec& spec, const PlacementList& placements, const at::Tensor& local) {
  return spec.space->spec(placements, spec.sizes, row_major_strides(spec.sizes),
                          local.scalar_type(), local.device());
}

// The same memory, whose writes count for both.
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

// In other placements, in memory of its own.
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

// The first rank's values.
at::Tensor values_of_first(const at::Tensor& tensor, const Spec& spec) {
  Space& space = *spec.space;
  at::Tensor whole = tensor.contiguous();
  if (space.all().size() > 1 && whole.numel() > 0) {
    if (whole.is_same(tensor) || same_memory(whole, tensor)) whole = whole.clone();
    space.all().broadcast(whole, 0, {.tag = "distribute"}).wait();
    std::lock_guard lock(space.traffic_mutex);
    ++space.traffic.broadcasts;
    if (!space.all().is_root()) space.traffic.bytes += static_cast<std::int64_t>(whole.nbytes());
  }
  return whole;
}

struct Distribute : Function<Distribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const Mesh& mesh,
                            const PlacementList& placements) {
    Space& space = Space::of(mesh);
    SpecPtr all = space.spec(space.replicated(), tensor.sizes(), row_major_strides(tensor.sizes()),
                             tensor.scalar_type(), tensor.device());
    remember(context, mesh, all);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor whole = values_of_first(tensor, *all);
    at::Tensor part = converted(whole, *all, placements);
    bool is_its_own = part.is_contiguous() && part.storage().nbytes() == part.nbytes();
    if (!is_its_own || same_memory(part, tensor)) part = part.clone(at::MemoryFormat::Contiguous);
    return wrap(part, space.spec(placements, all->sizes, all->strides, all->dtype, all->device),
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

}  // namespace lockstep::global
