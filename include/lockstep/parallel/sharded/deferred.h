// deferred(): constructs a model that is too large for one rank.
//
//   auto model = lockstep::deferred([&] { return lockstep::models::Gpt(options); });
//   auto sharded = lockstep::fully_shard(model, world, {.units = {"transformer.h.*"}});
//
// Large tensors that the function makes get no memory: the way to compute them is recorded instead.
// fully_shard() then gives one unit its values, shards it, releases the memory and continues with
// the next unit: a rank never holds more than its shards and one unit. (At levels that keep all
// parameters on every rank, it also holds those.)
//
// Values are bit-identical to those of ordinary construction, and the random number generators end
// in the same state: every number is drawn while the function runs, and again, from a copy of the
// generator's earlier state, when the values are computed. So construction takes the usual time
// plus, on rank 0, the time for drawing the random numbers again, and needs memory for the tensors
// of one operation at a time.
//
// A module can be used before it is sharded: each tensor gets its memory permanently at the first
// operation on it. Code that reads a tensor's memory past LibTorch's dispatcher (data_ptr(),
// accessor(), printing inside the function) fails with an error that says so.
// dispatch/deferred_init.h lists the tensors that are made immediately: small ones, and those on
// devices other than the CPU.
//
// Not collective. Thread-safe; tensors that other threads make meanwhile are not deferred.
#pragma once

#include <lockstep/dispatch/deferred_init.h>

#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <utility>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

struct DeferredOptions {
  // Tensors of fewer bytes are made immediately. A deferred tensor needs about 6 KiB to record how
  // to build it.
  std::int64_t smallest = std::int64_t{64} << 10;
};

// Returns the result of `make`. Throws Error if this LibTorch does not support deferred
// initialisation (lockstep/dispatch/deferred_init.h).
template <std::invocable Make>
auto deferred(Make&& make, DeferredOptions options = {}) {
  dispatch::DeferredInit deferred_init(options.smallest);
  return std::forward<Make>(make)();
}

// Not collective. Moves a module to a device, as module.to(device), but parameters and buffers that
// share memory share it on the device, too, and the tensors of deferred() get no memory.
// fully_shard() then gives one unit at a time its memory there, so no device ever has the whole
// model. Not for a sharded module.
void move_to(torch::nn::Module& module, c10::Device device);

// Not collective. Turns all parameters and buffers of a module that deferred() made into ordinary
// tensors with their values, whether or not they have memory already. Not for a sharded module.
void make_values(torch::nn::Module& module);

}  // namespace lockstep

#pragma GCC visibility pop
