// Options of our optimizers beside those of torch::optim. They hold for all parameter groups.
//
//   optim::AdamW adamw(parameters, AdamWOptions(1e-3), {.state = StateFormat::blockwise});
#pragma once

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace lockstep::optim {

class StateMemory;  // state_memory.h

// Storage format of optimizer state between steps. The arithmetic is float32 in every case. The
// bytes a parameter that one AdamW step moves, parameter and gradient (12) included:
//
//   float32     28      the numbers of torch::optim
//   bfloat16    20      stochastic rounding (unbiased)
//   blockwise   16.06   8 bits an element, a scale for each 256 of them, stochastic rounding
//
// The random bits of rounding depend on the seed, the step and the place of an element in its group
// alone: replicas that take the same steps stay equal bit for bit, with any number of threads.
// amsgrad's greatest squares and the masters of 16-bit parameters stay float32.
enum class StateFormat { float32, bfloat16, blockwise };

struct UpdateOptions {
  bool maximize = false;  // go up the gradient
  StateFormat state = StateFormat::float32;
  std::uint64_t seed = 0;  // of the random bits of rounding
  // Where the state of parameters on the CPU lies; null: in ordinary memory. What is loaded is
  // moved there by the next step().
  std::shared_ptr<StateMemory> memory = nullptr;
};

}  // namespace lockstep::optim

#pragma GCC visibility pop
