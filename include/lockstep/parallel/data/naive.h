// Data parallelism in ten lines: what DistributedDataParallel does, without buckets, overlap or
// hooks. Read this first; the tests compare the fast one with it, bit for bit.
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

// Collective, blocks. Rank 0's parameters and buffers become everybody's.
void broadcast_parameters(torch::nn::Module& module, Group group);

// Collective, blocks. Every defined .grad becomes the average over ranks; the same ones must be
// defined on all.
void average_gradients(torch::nn::Module& module, Group group);

}  // namespace lockstep::naive

#pragma GCC visibility pop
