// Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015) in one pass over
// memory: a torch::optim::Adam of which only step() differs. adamw.h says how, and has the class.
//
// Weight decay is added to the gradient (g = g + weight_decay * w), unlike AdamW's.
#pragma once

#include <lockstep/optim/adamw.h>

#include <torch/optim/adam.h>

#pragma GCC visibility push(default)

namespace lockstep::optim {

extern template class AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;
using Adam = AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;

}  // namespace lockstep::optim

#pragma GCC visibility pop
