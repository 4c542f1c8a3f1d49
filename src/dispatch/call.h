// Call: one operation on its way from LibTorch's dispatcher through the interceptors to its kernel.
//
// An interceptor is a function that is called for every operation on a tensor with our key
// (dispatch/key.h). It does its work and proceeds:
//
//   void bring_memory(Call& call) {
//     ...                 // before
//     call.proceed();     // the next interceptor, and at last the kernel
//     ...                 // after, unless something was thrown
//   }
//
// Interceptors do not know each other: key.cc lists them from the outermost to the innermost.
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
  // How an operation uses the memory of its arguments.
  enum class Kind {
    query,    // not at all: the operation only reads properties of tensors
    view,     // not yet: the result is a view of the same memory
    compute,  // reads or writes the memory
  };

  Call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] const c10::OperatorHandle& operation() const { return operation_; }
  // The last items are the arguments; after proceed() or redispatch(), the results.
  [[nodiscard]] torch::jit::Stack& stack() const { return stack_; }
  [[nodiscard]] static c10::DispatchKey key() { return our_key; }
  [[nodiscard]] Kind kind() const { return kind_; }

  // Runs the interceptors that follow, then the kernel. Call once.
  void proceed();
  // Runs LibTorch's kernel directly. Operations that the kernel calls on the same tensors are
  // separate calls.
  void redispatch();

 private:
  const c10::OperatorHandle& operation_;
  c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  Kind kind_;
  std::size_t next_ = 0;  // index of the next interceptor
};

using Interceptor = void (*)(Call& call);

// The function registered with the dispatcher for our keys.
void intercept(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
               torch::jit::Stack* stack);

// Returns true if an operation writes this argument.
[[nodiscard]] inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Calls action(tensor) for each defined tensor in an operation's argument or result.
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

// DispatchDelegate: the object behind a tensor without memory of its own; it runs the tensor's
// operations.
//
// Such a tensor is an ordinary TensorImpl without storage, with the dispatch key (dispatch/key.h)
// and a DispatchDelegate as its backend's data, which its aliases (detach(), data(), set_data())
// share.
class DispatchDelegate : public c10::BackendMeta {
 public:
  // Runs an operation that has such a tensor among its arguments. It may call proceed().
  virtual void run(Call& call) = 0;

  // Returns the tensor with the values that this process has.
  [[nodiscard]] virtual const at::Tensor& memory() const = 0;
  // Returns the same tensor with its values in other memory of the same layout.
  [[nodiscard]] virtual at::Tensor in_memory(at::Tensor memory) const = 0;
  // Returns a function that makes tensors like this one with its current values; the function holds
  // no memory.
  [[nodiscard]] virtual std::function<at::Tensor(at::Tensor memory)> maker() = 0;
};

// Returns null for any other tensor.
[[nodiscard]] inline DispatchDelegate* delegate_of(const c10::TensorImpl& tensor,
                                                   c10::DispatchKey key) {
  if (!tensor.key_set().has(key) || tensor.has_storage()) return nullptr;
  return static_cast<DispatchDelegate*>(const_cast<c10::TensorImpl&>(tensor).get_backend_meta());
}

// Interceptor: finds the first argument with a delegate, and lets that delegate run the operation.
void run_by_delegate(Call& call);

}  // namespace lockstep::dispatch
