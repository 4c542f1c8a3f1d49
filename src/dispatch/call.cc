#include "dispatch/call.h"

namespace lockstep::dispatch {
namespace {

Carrier* carrier_in(const c10::IValue& value, c10::DispatchKey key) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? carrier_of(*tensor.unsafeGetTensorImpl(), key) : nullptr;
  }
  if (!value.isList()) return nullptr;
  for (const c10::IValue& element : value.toListRef()) {
    if (!element.isTensor() && !element.isNone()) return nullptr;
    if (Carrier* found = carrier_in(element, key)) return found;
  }
  return nullptr;
}

}  // namespace

void hand_to_carrier(Call& call) {
  if (call.kind() == Call::Kind::query) return call.proceed();
  for (const c10::IValue& argument :
       torch::jit::last(call.stack(), call.operation().schema().arguments().size()))
    if (Carrier* carrier = carrier_in(argument, call.key())) return carrier->run(call);
  call.proceed();
}

}  // namespace lockstep::dispatch
