// PlainCheck: whether all ranks pass equal plain tensors where these count as replicated. With
// another batch on each rank of a group nothing fails: the numbers are wrong.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace lockstep::global {

class PlainCheck {
 public:
  // A plain tensor is read by an operation on global ones. The first few are compared over the
  // group, and then each whose number is a power of two: collective then. Mismatch on all ranks
  // where integers differ, or numbers by more than rounding. Any thread.
  void look(const at::Tensor& tensor, std::string_view operation, Group& group);

 private:
  std::atomic<std::uint64_t> count_ = 0;
};

}  // namespace lockstep::global
