// ValueSource: the owner of a LazyStorage whose values can be had piece by piece, where they are
// used, instead of all at once in memory.
//
//   if (auto source = dispatch::source_of(tensor))
//     source->read(tensor.storage_offset() + begin, count, buffer);     // a few at a time
//   else
//     ...                                                              // tensor's own memory
//
// Code that knows nothing of it uses the tensor as any other: the first operation that does brings
// all of its memory (dispatch/memory.h).
#pragma once

#include "dispatch/lazy_storage.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace lockstep::dispatch {

class ValueSource : public StorageOwner {
 public:
  // Elements [begin, begin + count) of the storage, in the dtype of its tensors. Any thread.
  virtual void read(std::int64_t begin, std::int64_t count, void* to) const = 0;
  // Bytes of memory that read() reads for each element.
  [[nodiscard]] virtual std::int64_t bytes_an_element() const = 0;
};

// Null when `tensor` is not lazy, has its memory, or has another kind of owner.
[[nodiscard]] std::shared_ptr<ValueSource> source_of(const at::Tensor& tensor);

// For kernels that read or write memory past the dispatcher: asks the owner of a lazy tensor, as an
// operation would. Memory is there afterwards if it stays when nobody uses it. Other tensors are
// left alone. `operation` is for messages.
void bring(const at::Tensor& tensor, const char* operation, bool writes);

}  // namespace lockstep::dispatch
