#include <lockstep/global/redistribute.h>

#include "global/autograd.h"
#include "global/global_tensor.h"

namespace lockstep {

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements) {
  const global::Spec& spec = *global::expect_global(tensor, "redistribute").spec;
  return global::redistributed(
      tensor, global::checked(placements, spec.sizes, spec.space->place(), "redistribute"));
}

}  // namespace lockstep
