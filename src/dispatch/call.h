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
// Interceptors do not know each other: interceptors.cc lists them, the outermost first.
#pragma once

#include "dispatch/key.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <cstddef>

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

}  // namespace lockstep::dispatch
