#include "dispatch/value_source.h"

namespace lockstep::dispatch {

std::shared_ptr<ValueSource> source_of(const at::Tensor& tensor) {
  if (!tensor.defined() || has_memory(tensor)) return nullptr;
  return std::dynamic_pointer_cast<ValueSource>(owner_of(*tensor.unsafeGetTensorImpl()));
}

void bring(const at::Tensor& tensor, const char* operation, bool writes) {
  auto owner = owner_of(*tensor.unsafeGetTensorImpl());
  if (!owner) return;
  owner->pin({.operation = operation, .offset = tensor.storage_offset(), .writes = writes});
  owner->unpin();
}

}  // namespace lockstep::dispatch
