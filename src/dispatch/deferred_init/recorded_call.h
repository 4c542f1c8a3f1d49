// A recorded operation of a DeferredInit that can be run again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace lockstep::dispatch {

// A deferred storage; the address of the object identifies it.
struct StorageSpec {
  std::int64_t bytes = 0;
};
using StorageId = std::shared_ptr<const StorageSpec>;

// A tensor in a deferred storage.
struct TensorPlace {
  StorageId storage;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  // in elements
};

// The bytes of storages.
using Memories = std::map<StorageId, at::Tensor>;

// The position of a tensor among arguments or results.
struct StackIndex {
  std::size_t item = 0;
  int element = -1;  // index in a list; -1: the item itself
  bool operator==(const StackIndex&) const = default;
};

struct RecordedCall {
  struct Argument {
    StackIndex where;
    TensorPlace tensor;
  };
  struct Result {
    StackIndex where;
    StorageId storage;
  };

  // Greater than the time of every earlier call that shares a storage with this one.
  std::int64_t time = 0;
  int depth = 0;  // length of the longest path along `before`
  c10::OperatorHandle operation;
  torch::jit::Stack arguments;  // without deferred tensors, which are in `deferred`
  int generator = -1;           // index of the generator argument, a copy; -1: none
  std::vector<Argument> deferred;
  std::vector<Result> made;
  // Calls that must run before: the last writers of the storages that this call uses.
  std::vector<std::shared_ptr<const RecordedCall>> before;
};

// place_of() returns the position of `tensor` in `storage`; tensor_in() returns the tensor at that
// place in ordinary memory.
[[nodiscard]] TensorPlace place_of(const at::Tensor& tensor, const StorageId& storage);
[[nodiscard]] at::Tensor tensor_in(const at::Tensor& memory, const TensorPlace& place);
// Allocates separate pages: short-lived buffers of a construction would fragment malloc's memory.
[[nodiscard]] at::Tensor new_memory(const StorageSpec& storage);
// Returns a copy of the whole storage of `tensor`, in memory from new_memory().
[[nodiscard]] at::Tensor copy_of_storage(const at::Tensor& tensor);

// Calls action(index, tensor) for every defined tensor.
void for_each_tensor_on(const torch::jit::Stack& items,
                        const std::function<void(StackIndex, const at::Tensor&)>& action);
void set_tensor(torch::jit::Stack& items, StackIndex where, const at::Tensor& tensor);

// Returns `arguments` with the deferred ones in `memories`, allocating their memory if they have
// none.
[[nodiscard]] torch::jit::Stack filled(torch::jit::Stack arguments,
                                       const std::vector<RecordedCall::Argument>& deferred,
                                       Memories& memories);

// Runs the operation on ordinary tensors, without recording and below autograd.
void run_plainly(const c10::OperatorHandle& operation, torch::jit::Stack& stack);

// Returns the values of a storage after its writer `last`: runs that call and all its predecessors
// again.
[[nodiscard]] at::Tensor replayed(const std::shared_ptr<const RecordedCall>& last,
                                  const StorageId& storage);

}  // namespace lockstep::dispatch
