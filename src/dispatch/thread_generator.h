// Random numbers of a thread's own.
//
// LibTorch has one default generator for the CPU. Threads that compute side by side would take its
// numbers in whatever order they come, and a run would not repeat. While a ThreadGenerator lives,
// operations of its thread on the CPU that are given no generator (dropout, rand(), init) draw from
// its own.
//
// How: operations that take a generator get a kernel for a dispatch key of LibTorch's that only
// threads have, not tensors. Others fall through it, at no cost.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>

namespace lockstep::dispatch {

class [[nodiscard]] ThreadGenerator {
 public:
  // Registers the kernels, which other threads must not be computing meanwhile; once a process.
  // Error where this LibTorch leaves no key for them.
  static void prepare();

  // After prepare(). They nest.
  explicit ThreadGenerator(std::uint64_t seed);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Generator* before_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

}  // namespace lockstep::dispatch
