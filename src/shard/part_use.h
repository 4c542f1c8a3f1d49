// Parts in operations: which are refused, and whose results are parts again.
#pragma once

#include <lockstep/shard/lazy_storage.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>

#include <optional>

namespace lockstep::shard {

// Null when the storage of `tensor` has none.
[[nodiscard]] const PartPlace* part_place_of(const c10::TensorImpl& tensor);

// How one operation uses parts that have several ranks. Made before it runs.
class PartUse {
 public:
  // InvalidArgument for a part among the arguments and an operation that mixes elements.
  PartUse(const c10::OperatorHandle& operation, const torch::jit::Stack& stack,
          c10::DispatchKey key);

  // After the operation: results that are new become parts, as the arguments were.
  void mark_results(torch::jit::Stack& stack) const;

 private:
  const c10::OperatorHandle& operation_;
  c10::DispatchKey key_;
  std::optional<PartPlace> of_results_;
};

}  // namespace lockstep::shard
