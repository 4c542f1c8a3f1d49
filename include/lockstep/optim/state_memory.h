// Where our optimizers allocate their state when it must not be in ordinary memory: in a file, for
// example (Handle::state_memory()).
//
//   optim::AdamW adamw(sharded.parameters(), options, {.memory = sharded.state_memory()});
//
// A step then goes through the parameters in batches. Before each batch it says which memory the
// next one uses, and after it which memory is no longer used, gradients and parameters included.
// Results do not depend on it.
//
// The state of LibTorch's own optimizers can be moved there:
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

  // Zeros in host memory, one dimension; theirs as long as the tensor lives. SystemError when there
  // is no room.
  [[nodiscard]] virtual at::Tensor zeros(std::int64_t count, at::ScalarType dtype) = 0;
  // Whether `tensor` came from here.
  [[nodiscard]] virtual bool holds(const at::Tensor& tensor) const = 0;

  // Advice; tensors from elsewhere are left alone.
  virtual void will_use(const at::Tensor& tensor) noexcept = 0;
  virtual void has_used(const at::Tensor& tensor) noexcept = 0;
};

// Local. From now on the state of an Adam, AdamW, RMSprop, Adagrad or SGD of LibTorch's lies in
// `memory`, as far as parameters are on the CPU and not global; nothing if that is null. What the
// first step of Adam, AdamW and RMSprop would make is made there at once; SGD makes its momentum in
// its first step, so call this after that. Call it after load(), too, which makes all state anew.
// Steps read and write what they need, in no batches, and the system takes it out of memory as it
// needs room.
//
// InvalidArgument for other optimizers, and for ours, which are told by UpdateOptions::memory.
void move_state(torch::optim::Optimizer& optimizer, const std::shared_ptr<StateMemory>& memory);

}  // namespace lockstep::optim

#pragma GCC visibility pop
