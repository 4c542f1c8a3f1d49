// Deferral: while one lives, large tensors that its thread makes get no memory, and how their
// values come about is recorded instead.
//
// Everything is computed once, as always, so random numbers are drawn in the order of the program
// and what is thrown is thrown where it would be; of a large result only the recipe is kept: the
// operations that made it, with copies of their small arguments and of the generators as they were.
// So values can be had later, in any order, or never, and are the same bits.
//
// Inside the scope an operation that uses a deferred tensor computes its values again, for that
// operation. Outside the first such operation gives it its memory for good. Reading it past the
// dispatcher (data_ptr(), accessor()) is an error before that.
//
// Views, in-place operations on them, ties (one storage or one tensor in several places) and
// autograd are as always. What stays an ordinary tensor from the beginning: what is small, what is
// computed from ordinary tensors by kernels that make their own memory, and what takes more
// operations to make than are worth remembering (a table that is written element by element).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#pragma GCC visibility push(default)

namespace lockstep::dispatch {

class Recorder;

class [[nodiscard]] Deferral {
 public:
  // Tensors of at least `smallest` bytes are deferred. Error when this LibTorch leaves no dispatch
  // key for it.
  explicit Deferral(std::int64_t smallest);
  ~Deferral();
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

// Whether `tensor` was deferred; it may have its memory by now.
[[nodiscard]] bool is_deferred(const at::Tensor& tensor);

// Gives a deferred tensor, and all that share its storage, memory with its values; nothing when it
// has them. Any thread.
void give_values(const at::Tensor& tensor);
// The same without values, before all of them are written.
void give_memory(const at::Tensor& tensor);
// An ordinary tensor in the same memory. The tensor is deferred.
[[nodiscard]] at::Tensor as_ordinary(const at::Tensor& tensor);

}  // namespace lockstep::dispatch

#pragma GCC visibility pop
