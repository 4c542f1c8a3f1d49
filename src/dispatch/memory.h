// The interceptor that brings memory: it pins the lazy storages (dispatch/lazy_storage.h) among an
// operation's arguments while it runs.
#pragma once

#include "dispatch/call.h"
#include "dispatch/lazy_storage.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>

namespace lockstep::dispatch {

// An operation that only makes a view runs without memory; owners are told of it. What an owner
// throws, the operation throws.
void bring_memory(Call& call);

// The same for what reads a tensor past the dispatcher: its memory is there while one of these
// lives. Nothing for other tensors.
class [[nodiscard]] MemoryUse {
 public:
  MemoryUse(const at::Tensor& tensor, std::string_view operation);
  ~MemoryUse();
  MemoryUse(const MemoryUse&) = delete;
  MemoryUse& operator=(const MemoryUse&) = delete;

 private:
  std::shared_ptr<StorageOwner> owner_;
};

}  // namespace lockstep::dispatch
