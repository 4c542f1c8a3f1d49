// Carrier: what stands behind a tensor that has no memory of its own, and runs its operations.
//
// Such a tensor is an ordinary TensorImpl without storage, with the dispatch key (dispatch/key.h)
// and a Carrier as its backend's data, which its aliases (detach(), data(), set_data()) share.
#pragma once

#include "dispatch/call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <functional>

namespace lockstep::dispatch {

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
