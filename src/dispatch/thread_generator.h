// A random number generator per thread.
//
// LibTorch has one default generator for the CPU. Concurrent threads would draw its numbers in
// arbitrary order, and a run would not be reproducible. During the lifetime of a ThreadGenerator,
// CPU operations of its thread without an explicit generator (dropout, rand(), init) draw from it.
//
// How: operations that take a generator get a kernel for a dispatch key of LibTorch that only
// threads have, not tensors. Other operations fall through, at no cost.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>

namespace lockstep::dispatch {

class [[nodiscard]] ThreadGenerator {
 public:
  // Registers the kernels, once per process; other threads must not be computing meanwhile. Throws
  // Error if this LibTorch has no free key for them.
  static void prepare();

  // Call prepare() before. Objects may be nested.
  explicit ThreadGenerator(std::uint64_t seed);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Generator* before_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

// Seeds the default generator of one device. torch::manual_seed() seeds those of all devices.
void seed_default_generator(c10::Device device, std::uint64_t seed);

}  // namespace lockstep::dispatch
