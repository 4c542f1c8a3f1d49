// What stands behind a global tensor on this rank.
#pragma once

#include "dispatch/carrier.h"
#include "global/space.h"
#include "global/spec.h"

#include <lockstep/mesh/mesh.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace lockstep::global {

class GlobalTensor final : public dispatch::Carrier {
 public:
  GlobalTensor(at::Tensor local, SpecPtr spec, Mesh mesh)
      : local(std::move(local)), spec(std::move(spec)), mesh(std::move(mesh)) {}

  void run(dispatch::Call& call) override;

  const at::Tensor local;
  const SpecPtr spec;
  const Mesh mesh;  // keeps the space of `spec`
  // The result of a view that had to be redistributed first: writes to it would not reach the
  // tensor that it is a view of.
  bool is_copy = false;

  // A Partial tensor that an operation needed otherwise: reduced once, not by each such operation.
  struct Reduced {
    PlacementList placements;
    at::Tensor local;
    std::uint32_t version = 0;  // of the tensor, when it was reduced
  };
  std::mutex mutex;
  std::unique_ptr<Reduced> reduced;  // guarded by it
};

// Null for a plain tensor.
[[nodiscard]] GlobalTensor* global_of(const at::Tensor& tensor);
// InvalidArgument for a plain tensor: `what` begins the message.
[[nodiscard]] GlobalTensor& expect_global(const at::Tensor& tensor, const char* what);

// A new global tensor. `local` has the sizes that `spec` says for this rank, and its dtype.
[[nodiscard]] at::Tensor wrap(at::Tensor local, const SpecPtr& spec, const Mesh& mesh);

// `tensor`'s values, which are global, in other placements: to read only, since the memory may be
// the tensor's own. Collective where a conversion is.
[[nodiscard]] at::Tensor values_in(const at::Tensor& tensor, std::span<const Placement> placements);

}  // namespace lockstep::global
