// Call: one operation on its way from LibTorch's dispatcher, past the interceptors, to its kernel.
//
// An interceptor is a function that is called for every operation on a tensor with our key
// (dispatch/key.h). It does what it has to do, and proceeds:
//
//   void bring_memory(Call& call) {
//     ...                 // before
//     call.proceed();     // the next interceptor, and at last the kernel
//     ...                 // after, unless something was thrown
//   }
//
// Interceptors do not know each other: key.cc lists them, the outermost first.
#pragma once

#include "dispatch/key.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <functional>

namespace lockstep::dispatch {

class Call {
 public:
  // What an operation does with the memory of its arguments.
  enum class Kind {
    query,    // nothing: it asks what kinds of tensors they are
    view,     // nothing yet: its result lies in the same memory
    compute,  // reads or writes it
  };

  Call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] const c10::OperatorHandle& operation() const { return operation_; }
  // The arguments are its last items, and the results after proceed() or redispatch().
  [[nodiscard]] torch::jit::Stack& stack() const { return stack_; }
  [[nodiscard]] static c10::DispatchKey key() { return our_key; }
  [[nodiscard]] Kind kind() const { return kind_; }

  // The interceptors that follow, and then the kernel. Once.
  void proceed();
  // LibTorch's kernel at once. The operations that it calls in its turn on the same tensors are
  // calls of their own.
  void redispatch();

 private:
  const c10::OperatorHandle& operation_;
  c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  Kind kind_;
  std::size_t next_ = 0;  // interceptor
};

using Interceptor = void (*)(Call& call);

// The function that is registered with the dispatcher for our keys.
void intercept(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
               torch::jit::Stack* stack);

// Whether an operation writes this argument.
[[nodiscard]] inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// The tensors among an operation's arguments or results.

// Calls action(tensor) for each that is defined.
template <typename Action>
void for_each_tensor_in(const c10::IValue& value, Action&& action) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) action(*value.toTensor().unsafeGetTensorImpl());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) action(*tensor.unsafeGetTensorImpl());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor_in(element, action);
  }
}

// Carrier: what stands behind a tensor that has no memory of its own, and runs its operations.
//
// Such a tensor is an ordinary TensorImpl without storage, with the dispatch key (dispatch/key.h)
// and a Carrier as its backend's data, which its aliases (detach(), data(), set_data()) share.
class Carrier : public c10::BackendMeta {
 public:
  // Runs an operation that has such a tensor among its arguments: instead of proceed(), or before.
  virtual void run(Call& call) = 0;

  // Where the values lie that this process has.
  [[nodiscard]] virtual const at::Tensor& memory() const = 0;
  // The same tensor, with its values in other memory that is laid out alike.
  [[nodiscard]] virtual at::Tensor in_memory(at::Tensor memory) const = 0;
  // Makes tensors like this one, of the values that it has now, and holds no memory.
  [[nodiscard]] virtual std::function<at::Tensor(at::Tensor memory)> maker() = 0;
};

// Null for any other tensor.
[[nodiscard]] inline Carrier* carrier_of(const c10::TensorImpl& tensor, c10::DispatchKey key) {
  if (!tensor.key_set().has(key) || tensor.has_storage()) return nullptr;
  return static_cast<Carrier*>(const_cast<c10::TensorImpl&>(tensor).get_backend_meta());
}

// The interceptor: the carrier of the first such argument runs the operation.
void hand_to_carrier(Call& call);

}  // namespace lockstep::dispatch
