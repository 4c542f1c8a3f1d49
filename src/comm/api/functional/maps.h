// The maps of which the differentiable collectives are made, without autograd: each makes a new
// contiguous tensor. Dims are not negative, sizes were checked.
#pragma once

#include "comm/api/functional/recorded.h"

#include <lockstep/comm/call.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::functional {

// Along one dim, one of each rank; empty: all equal.
using Sizes = std::vector<std::int64_t>;

[[nodiscard]] Map identity();
[[nodiscard]] Map combine(Op op);
[[nodiscard]] Map send_from(int root);
[[nodiscard]] Map sum_at(int root);
// `divide`: by the number of ranks, afterwards.
[[nodiscard]] Map join(std::int64_t dim, Sizes sizes, bool divide = false);
[[nodiscard]] Map cut(std::int64_t dim, Sizes sizes, Op op);
[[nodiscard]] Map exchange(std::int64_t split_dim, std::int64_t join_dim);
[[nodiscard]] Map exchange(std::int64_t dim, Sizes output_sizes, Sizes input_sizes);

}  // namespace lockstep::functional
