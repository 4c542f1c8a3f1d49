// DeferredInit: during the lifetime of such an object, large tensors that its thread makes get no
// memory; the way to compute their values is recorded instead.
//
// Every operation runs once, as usual, so random numbers are drawn in program order and exceptions
// are thrown at their usual place. For a large result, only the recipe is kept: the operations that
// made it, with copies of their small arguments and of the generators' states. The values can be
// computed later, in any order, or never, and are bit-identical.
//
// Inside the scope, an operation that uses a deferred tensor recomputes its values for that
// operation. Outside the scope, the first such operation gives the tensor its memory permanently.
// Reading a tensor without memory past the dispatcher (data_ptr(), accessor()) is an error.
//
// Views, in-place operations on them, ties (one storage or one tensor in several places) and
// autograd work as usual. Some tensors are ordinary from the beginning: small tensors, results of
// kernels that allocate their own memory and get only ordinary tensors, and tensors that are made
// by too many operations to record (a table that is written element by element).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>

#pragma GCC visibility push(default)

namespace lockstep::dispatch {

class Recorder;

class [[nodiscard]] DeferredInit {
 public:
  // Defers tensors of at least `smallest` bytes. Throws Error if this LibTorch has no free dispatch
  // key.
  explicit DeferredInit(std::int64_t smallest);
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

// Returns true if `tensor` was deferred; it may have its memory by now.
[[nodiscard]] bool is_deferred(const at::Tensor& tensor);

// Gives a deferred tensor, and all tensors that share its storage, memory with its values; does
// nothing if it has memory. Thread-safe.
void give_values(const at::Tensor& tensor);
// Gives the tensor memory without values; for callers that write all of them.
void give_memory(const at::Tensor& tensor);
// Lets the tensors get their memory on `device`: a deferred tensor without memory gets none now,
// and its values are computed in host memory and copied when they are needed. Other tensors are
// moved now. Tensors that share memory and are passed in one call share it on the device, too.
// Changes the tensors in place, as Module::to() does.
void move_to(std::span<const at::Tensor> tensors, c10::Device device);
// Returns an ordinary tensor in the same memory. `tensor` must be deferred.
[[nodiscard]] at::Tensor as_ordinary(const at::Tensor& tensor);

}  // namespace lockstep::dispatch

#pragma GCC visibility pop
