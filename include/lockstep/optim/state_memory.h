// Where our optimizers take the memory of their state from, when that shall not be ordinary memory:
// a file, for one (ShardedModule::state_memory()).
//
//   optim::AdamW adamw(sharded.parameters(), options, {.memory = sharded.state_memory()});
//
// A step then goes through the parameters in stretches, and says before each what the next one
// uses, and after it what it has used, gradients and parameters included. Results do not depend on
// it. Masters of 16-bit parameters stay in ordinary memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

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

}  // namespace lockstep::optim
