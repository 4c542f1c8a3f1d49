#include <lockstep/global/tensor.h>

#include "base/check.h"
#include "global/autograd.h"
#include "global/decide.h"
#include "global/global_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <utility>

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
  return global::distributed(tensor, mesh, checked);
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
  return global::from_local(local, mesh, spec);
}

at::Tensor local_tensor(const at::Tensor& tensor) {
  (void)global::expect_global(tensor, "local_tensor");
  return global::to_local(tensor);
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements) {
  const global::Spec& spec = *global::expect_global(tensor, "redistribute").spec;
  return global::redistributed(
      tensor, global::checked(placements, spec.sizes, spec.context->place(), "redistribute"));
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  global::GlobalTensor& found = global::expect_global(tensor, "full_tensor");
  return global::to_local(redistribute(tensor, Placements(found.spec->placements.size())));
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
