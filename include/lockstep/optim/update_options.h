// Options that our optimizers have in addition to those of torch::optim. They apply to all
// parameter groups.
//
//   optim::AdamW adamw(parameters, AdamWOptions(1e-3), {.state = StateFormat::blockwise});
#pragma once

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace lockstep::optim {

class StateMemory;  // state_memory.h

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
