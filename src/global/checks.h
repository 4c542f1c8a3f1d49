// Checks that ranks which compute one model together use equal plain tensors and equal random
// numbers, and valid indices. Without them a difference between ranks makes wrong numbers and no
// error.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace lockstep::global {

// Compares plain tensors that count as replicated.
class PlainCheck {
 public:
  // Call before an operation on global tensors reads the plain `tensor`. Compares the first few
  // tensors over the group, and later only tensors whose number is a power of two. These calls are
  // collective. Throws Mismatch on all ranks if integers differ, or if floating-point numbers
  // differ by more than rounding. Thread-safe.
  void look(const at::Tensor& tensor, std::string_view operation, Group& group);

 private:
  std::atomic<std::uint64_t> count_ = 0;
};

// Compares the states of generators: random operations on global tensors draw the same numbers on
// every rank (rules/random.cc).
class GeneratorCheck {
 public:
  // Call before an operation draws from `generator`. Compares the generators of the ranks at the
  // first draw after each seeding, and then at draws 2, 4, 8, ... (powers of two). These calls are
  // collective. Throws Mismatch on all ranks if states differ. If only one rank seeds its
  // generator, that rank makes a call that the others do not make, and their next call reports the
  // difference. Thread-safe.
  void look(at::Generator generator, std::string_view operation, Group& group);

 private:
  std::mutex mutex_;
  std::uint64_t count_ = 0, seed_ = 0;
};

// Checks of indices. They are needed because a rank cannot distinguish an invalid index from an
// index into another rank's part. Throws InvalidArgument unless all of `values`, integers, are in
// [0, end). The message is `expected` and the value found. Values on a device may not be computed
// yet: instead of waiting for them, the device checks them and fails with `expected`, as PyTorch's
// kernels do (on CUDA by a device-side assertion).
void check_range(const at::Tensor& values, std::int64_t end, const std::string& expected);

}  // namespace lockstep::global
