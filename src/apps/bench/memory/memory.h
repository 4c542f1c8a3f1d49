// `lockstep bench memory`: what a rank holds, beside what the formulas say.
#pragma once

#include "apps/bench/memory/options.h"

namespace lockstep::apps {

// Prints one line a row, with its goal, or one JSON object a row. Rows:
//
//   counters     bytes a parameter of parameters, gradients and optimizer state, over the formula
//   pss          measured memory a rank above that before the model was made, over formula and
//                units in flight; private storage, 2 ranks; malloc gives back what is free
//   pss kept     the same as init() leaves malloc: faster, with what it keeps
//   node-shared  summed over 4 ranks, without gradients, over one replica's parameters and
//                optimizer state
//   limited      4 ranks train a model whose parameters, gradients and optimizer state are three
//                times what a control group lets one rank have
//
// Throws Error when a rank ended where it must not, SystemError where no control group can be made.
void measure_memory(const MemoryOptions& options);

}  // namespace lockstep::apps
