// The rank of `lockstep bench memory`.
#pragma once

#include "apps/bench/memory/options.h"

namespace lockstep::apps {

// Joins its peers by the environment, says `{"ready": true}`, and answers each line on standard
// input, "MODE DTYPE STEPS BUILD" such as "full float32 3 whole", by what a model that is then
// made, trained for so many steps and dropped again has cost this rank:
//
//   parameters   of the model
//   kept         bytes of parameters, gradients and optimizer state, by counters
//   units        bytes of units in flight and pooled, after the last step
//   peak_units   bytes of units in flight, the most after the first step
//   before       PSS before the model was made, after a small one has warmed the libraries up
//   after        PSS after the last step, with its gradients; `idle`: after zero_grad()
//   seconds      of each step
//
// BUILD is `whole`, or `parts`: each layer is divided when it has been made (ShardedBuild).
int serve_memory(const MemoryRankOptions& options);

}  // namespace lockstep::apps
