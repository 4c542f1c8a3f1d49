// Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015) in one pass over
// memory. It is a torch::optim::Adam with another step(); adamw.h describes the difference and
// defines the class.
//
// Unlike in AdamW, weight decay is added to the gradient: g = g + weight_decay * w.
#pragma once

#include <lockstep/optim/adamw.h>

#include <torch/optim/adam.h>

#pragma GCC visibility push(default)

namespace lockstep::optim {

extern template class AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;
using Adam = AdamOf<torch::optim::Adam, torch::optim::AdamOptions>;

}  // namespace lockstep::optim

#pragma GCC visibility pop
