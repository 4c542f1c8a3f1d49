// What ranks keep beside their slices (an optimizer's moments), put together to whole tensors.
#pragma once

#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::sharded {

// Collective over `shards`, and blocking. One part for each slice of the unit, as long as the
// slice; all of one dtype; one that is undefined is so on every rank. Rank 0 gets tensors of the
// parameters' sizes and strides; the others, and places of undefined parts, get undefined ones.
[[nodiscard]] std::vector<at::Tensor> gather_parts(const Unit& unit, Group& shards,
                                                   const std::vector<at::Tensor>& parts);

}  // namespace lockstep::sharded
