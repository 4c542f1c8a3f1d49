// The reductions that are not linear, with their gradients: min, max and product.
#pragma once

#include "comm/api/functional/recorded.h"

#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>

namespace lockstep::functional {

// Op::min or Op::max. Ranks that share the extreme value share its gradient equally, as at::amax
// does.
[[nodiscard]] at::Tensor extreme(const at::Tensor& input, const Site& site, Op op);
// Its gradient is a product over the other ranks, so factors of zero do no harm.
[[nodiscard]] at::Tensor product(const at::Tensor& input, const Site& site);

}  // namespace lockstep::functional
