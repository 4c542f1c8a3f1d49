// Whether a model can fit at all, asked before any of it is made: an allocation that the system
// grants at first ends in a process that the kernel kills without a word.
#pragma once

#include "sys/topology.h"

#include <lockstep/train/options.h>

namespace lockstep::train {

// Parameters, gradients and optimizer state of a model of so many parameters, in bytes of one rank
// of `ranks`: at least, because what is gathered, activations and buffers come on top.
[[nodiscard]] double bytes_of_a_rank(const Options& options, double parameters, int ranks);

struct ModelSize {
  double parameters = 0;
  double activations = 0;  // numbers that a rank's forward pass keeps for backward(), at least
};

// Throws BadInput when `local_ranks` on this machine cannot have that in `memory`. Not with
// options.offload.
void check_memory(const Options& options, const ModelSize& model, int ranks, int local_ranks,
                  const sys::MemorySize& memory);
// The same for this machine as it is now, and as many ranks as the launcher has told of.
void check_memory(const Options& options, const ModelSize& model, int ranks);

}  // namespace lockstep::train
