// What an optimizer remembers of a handle's parameters (lockstep/parallel/handle.h), as whole
// tensors whatever the strategy: so any number of ranks, and any strategy, can go on from it.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/parallel/handle.h>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::checkpoint {

// optimizer_state() (optimizer_state.h) of whole parameters. Complete on rank 0; collective where
// parameters are divided. The optimizer is built on the handle's parameters().
[[nodiscard]] NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                                           const Handle& handle);

// Local: takes this rank's part of what that gave, here or under another strategy. Checks first, as
// the other load_optimizer_state().
void load_optimizer_state(torch::optim::Optimizer& optimizer, const Handle& handle,
                          const NamedTensors& state);

// Bytes of what this rank's optimizer remembers.
[[nodiscard]] std::int64_t optimizer_state_bytes(const torch::optim::Optimizer& optimizer,
                                                 const Handle& handle);

}  // namespace lockstep::checkpoint

#pragma GCC visibility pop
