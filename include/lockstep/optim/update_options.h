// Options that our optimizers have in addition to those of torch::optim. They apply to all
// parameter groups.
//
//   optim::AdamW adamw(parameters, AdamWOptions(1e-3), {.state = StateFormat::blockwise});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

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
// state anew. LibTorch's step() does not work in batches: it reads and writes the state as needed,
// and the operating system evicts pages when memory runs short.
//
// Throws InvalidArgument for other optimizers, including ours, which take UpdateOptions::memory.
void move_state(torch::optim::Optimizer& optimizer, const std::shared_ptr<StateMemory>& memory);

// Storage format of optimizer state between steps. The arithmetic is always float32. Bytes per
// parameter that one AdamW step moves, including 12 for the parameter and its gradient:
//
//   float32     28      the numbers of torch::optim
//   bfloat16    20      stochastic rounding (unbiased)
//   blockwise   16.06   8 bits per element, one scale per 256 elements, stochastic rounding
//
// The random bits of rounding depend only on the seed, the step and the index of an element in its
// group: replicas that take the same steps stay bitwise equal, with any number of threads.
// max_exp_avg_sq of amsgrad and the masters of 16-bit parameters stay float32.
enum class StateFormat { float32, bfloat16, blockwise };

struct UpdateOptions {
  bool maximize = false;  // ascend along the gradient
  StateFormat state = StateFormat::float32;
  std::uint64_t seed = 0;  // of the random bits of rounding
  // Allocator for the state of parameters on the CPU; null: ordinary memory. State that load()
  // reads is moved there by the next step().
  std::shared_ptr<StateMemory> memory = nullptr;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
