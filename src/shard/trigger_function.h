// The function that the trigger's key calls instead of every operation.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

namespace lockstep::shard {

// Pins the lazy storages among the arguments, runs the operation below the key, and unpins them. An
// operation that only makes a view runs without memory.
void run_with_memory(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack);

}  // namespace lockstep::shard
