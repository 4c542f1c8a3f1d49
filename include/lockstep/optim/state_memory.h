// An allocator for optimizer state that must not be in ordinary memory, but in a file, for example
// (Handle::state_memory()).
//
//   optim::AdamW adamw(sharded.parameters(), options, {.memory = sharded.state_memory()});
//
// A step then processes the parameters in batches. Before each batch, it announces the memory that
// the next batch uses; after each batch, it announces the memory that is no longer used. Both
// include gradients and parameters. Results do not depend on the allocator.
//
// The state of LibTorch's own optimizers can be moved to such memory:
//
//   torch::optim::AdamW adamw(sharded.parameters());
//   optim::move_state(adamw, sharded.state_memory());
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

class StateMemory {
 public:
  virtual ~StateMemory() = default;

  // Returns a one-dimensional tensor of zeros in host memory. The memory stays valid as long as the
  // tensor exists. Throws SystemError if there is no room.
  [[nodiscard]] virtual at::Tensor zeros(std::int64_t count, at::ScalarType dtype) = 0;
  // Returns true if zeros() allocated `tensor`.
  [[nodiscard]] virtual bool holds(const at::Tensor& tensor) const = 0;

  // Hints about coming and past use. Tensors that zeros() did not allocate are ignored.
  virtual void will_use(const at::Tensor& tensor) noexcept = 0;
  virtual void has_used(const at::Tensor& tensor) noexcept = 0;
};

// Moves the state of a LibTorch Adam, AdamW, RMSprop, Adagrad or SGD to `memory`, for parameters
// that are on the CPU and not global. Does nothing if `memory` is null. Local. For Adam, AdamW and
// RMSprop, allocates at once the state that their first step would create. SGD creates its momentum
// in its first step, so call this after that step. Also call it after load(), which creates all
// state anew. Steps do not work in batches: they read and write the state as they need it, and the
// operating system evicts pages when memory runs short.
//
// Throws InvalidArgument for other optimizers, including ours, which take UpdateOptions::memory.
void move_state(torch::optim::Optimizer& optimizer, const std::shared_ptr<StateMemory>& memory);

}  // namespace lockstep::optim

#pragma GCC visibility pop
