// Checks the GPU of each rank, for backends that need a separate GPU per rank.
#pragma once

#include <span>
#include <string>

namespace lockstep::c10d_backend {

// `gpus` names the GPU of each rank; an empty name means that it sees no GPU. Throws BadInput that
// names a rank without a GPU, or two ranks that share one.
void check_gpus(std::span<const std::string> gpus);

}  // namespace lockstep::c10d_backend
