// Warms up LibTorch.
#pragma once

namespace lockstep {

// Runs forward, backward and an update of a small model of common layers, so that threads, kernels
// and dispatch tables exist. Local. Draws no random numbers.
void warm_up();

}  // namespace lockstep
