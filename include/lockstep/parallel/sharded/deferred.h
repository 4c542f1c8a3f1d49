// deferred(): a model that is too large for one rank, made as always.
//
//   auto model = lockstep::deferred([&] { return lockstep::models::Gpt(options); });
//   auto sharded = lockstep::fully_shard(model, world, {.units = {"transformer.h.*"}});
//
// Large tensors that the function makes get no memory: how they were made is remembered instead.
// fully_shard() then gives a unit its values, divide them, give the memory back and
// go on to the next one: a rank never holds more than its shards and one unit. (At the levels that
// keep all parameters on every rank it holds those.)
//
// Values are those of ordinary construction, bit for bit, and the random number generators are left
// as it leaves them: every number is drawn while the function runs, and once more, from a copy of
// the generator as it was, when values are wanted. So construction takes as long as always and, on
// rank 0, the time for random numbers once more; and it holds one operation's tensors at a time.
//
// A module that is used before it is divided works: each tensor gets its memory at the first
// operation on it, for good. What reads a tensor's memory past LibTorch's operations (data_ptr(),
// accessor(), printing inside the function) is an error that says so. dispatch/deferral.h says what
// is made at once all the same: small tensors, and those on other devices than the CPU.
//
// Local. Any thread; what other threads make meanwhile is made as always.
#pragma once

#include <lockstep/dispatch/deferral.h>

#include <concepts>
#include <cstdint>
#include <utility>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

struct DeferredOptions {
  // Tensors of fewer bytes are made at once. Remembering how one was made takes some 6 KB.
  std::int64_t smallest = std::int64_t{64} << 10;
};

// What `make` returns. Error when this LibTorch leaves no way to do it
// (lockstep/dispatch/deferral.h).
template <std::invocable Make>
auto deferred(Make&& make, DeferredOptions options = {}) {
  dispatch::Deferral deferral(options.smallest);
  return std::forward<Make>(make)();
}

// Local. All parameters and buffers of a module that deferred() made become ordinary tensors with
// their values, those without memory and those that have it already. Not for a sharded module.
void make_values(torch::nn::Module& module);

}  // namespace lockstep

#pragma GCC visibility pop
