// One operation of a Deferral, as it can be run again.
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

// A deferred storage; the object's address is what tells it from others.
struct StorageSpec {
  std::int64_t bytes = 0;
};
using StorageId = std::shared_ptr<const StorageSpec>;

// A tensor in one.
struct TensorPlace {
  StorageId storage;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;  // in elements
};

// All bytes of storages.
using Memories = std::map<StorageId, at::Tensor>;

// A tensor among arguments or results.
struct StackIndex {
  std::size_t item = 0;
  int element = -1;  // of a list; -1: the item itself
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

  // More than that of every call before it that uses one of the same storages.
  std::int64_t time = 0;
  int depth = 0;  // the longest way along `before`
  c10::OperatorHandle operation;
  torch::jit::Stack arguments;  // deferred tensors are among `deferred` instead
  int generator = -1;           // the argument that is a generator, as it was
  std::vector<Argument> deferred;
  std::vector<Result> made;
  // What must have run before: the last calls that wrote what this one uses.
  std::vector<std::shared_ptr<const RecordedCall>> before;
};

// Where `tensor` lies, which is in `storage`; and a tensor that lies there in ordinary memory.
[[nodiscard]] TensorPlace place_of(const at::Tensor& tensor, const StorageId& storage);
[[nodiscard]] at::Tensor tensor_in(const at::Tensor& memory, const TensorPlace& place);
// Bytes in pages of their own: what comes and goes in the course of a construction would leave
// malloc's memory in pieces.
[[nodiscard]] at::Tensor new_memory(const StorageSpec& storage);
// All bytes of its storage, in such memory.
[[nodiscard]] at::Tensor copy_of_storage(const at::Tensor& tensor);

// action(place, tensor) for every tensor that is defined.
void for_each_tensor_on(const torch::jit::Stack& items,
                        const std::function<void(StackIndex, const at::Tensor&)>& action);
void set_tensor(torch::jit::Stack& items, StackIndex where, const at::Tensor& tensor);

// `arguments` with the deferred ones in `memories`, which get memory where they have none.
[[nodiscard]] torch::jit::Stack filled(torch::jit::Stack arguments,
                                       const std::vector<RecordedCall::Argument>& deferred,
                                       Memories& memories);

// Runs the operation on ordinary tensors, unrecorded and below autograd.
void run_plainly(const c10::OperatorHandle& operation, torch::jit::Stack& stack);

// The values of a storage after `last`, which wrote it: runs that call and all it needs again.
[[nodiscard]] at::Tensor replayed(const std::shared_ptr<const RecordedCall>& last,
                                  const StorageId& storage);

}  // namespace lockstep::dispatch
