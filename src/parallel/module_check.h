// Do all ranks hold the same model?
#pragma once

#include <lockstep/comm/group.h>

#include <string>
#include <vector>

namespace lockstep::data_parallel {

// Collective: every rank passes one line for each thing that must be equal, in order ("parameter
// fc1.weight: Float [3, 4]"). Exchanges a fingerprint, and the lines themselves only when
// fingerprints differ. Throws Mismatch with the first difference, both ranks and both lines, on
// every rank alike; the group lives on.
void check_same_lines(const Group& group, const std::vector<std::string>& lines,
                      const CallOptions& call = {});

}  // namespace lockstep::data_parallel
