// Data parallelism in ten lines: DistributedDataParallel without buckets, overlap or hooks. Read
// this first; the tests require bit-identical results of both.
//
//   broadcast_parameters(*model, group);   // once
//   ...
//   loss.backward();
//   average_gradients(*model, group);      // before every optimizer step
#pragma once

#include <lockstep/comm/group.h>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep::naive {

// Collective, blocks. Broadcasts rank 0's parameters and buffers.
void broadcast_parameters(torch::nn::Module& module, Group group);

// Collective, blocks. Averages every defined .grad over ranks; the same ones must be defined on all
// ranks.
void average_gradients(torch::nn::Module& module, Group group);

}  // namespace lockstep::naive

#pragma GCC visibility pop
