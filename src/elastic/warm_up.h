// What LibTorch does at its first use.
#pragma once

namespace lockstep {

// Local: a small model of the usual layers goes forward, backward and through an update, so that
// threads, kernels and dispatch tables are there. Draws no random numbers.
void warm_up();

}  // namespace lockstep
