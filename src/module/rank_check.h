// Do all ranks hold the same model?
#pragma once

#include "module/tensors.h"

#include <lockstep/comm/group.h>

#include <string>
#include <vector>

namespace lockstep::modules {

// One line for each parameter and buffer: name, dtype, sizes, ties, whether it requires a gradient,
// and what it shares memory with.
[[nodiscard]] std::vector<std::string> lines_of(const ModuleTensors& tensors);

// Collective: every rank passes one line for each thing that must be equal, in order ("parameter
// fc1.weight: Float [3, 4]"). Exchanges a fingerprint, and the lines themselves only when
// fingerprints differ. Throws Mismatch with the first difference, both ranks and both lines, on
// every rank alike; the group lives on.
void check_same_lines(const Group& group, const std::vector<std::string>& lines,
                      const CallOptions& call = {});

}  // namespace lockstep::modules
