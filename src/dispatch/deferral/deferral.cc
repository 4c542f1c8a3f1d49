#include <lockstep/dispatch/deferral.h>

#include "dispatch/deferral/deferred_storage.h"
#include "dispatch/deferral/recorder.h"
#include "dispatch/key.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>

namespace lockstep::dispatch {

struct Deferral::Scope {
  explicit Scope(std::int64_t smallest)
      : key(dispatch::key()),
        recorder(smallest),
        turn(&recorder),
        on(c10::DispatchKeySet({key, factory_key})) {}

  c10::DispatchKey key;
  Recorder recorder;
  Recorder::Turn turn;
  c10::impl::IncludeDispatchKeyGuard on;
};

Deferral::Deferral(std::int64_t smallest) : scope_(std::make_unique<Scope>(smallest)) {}
Deferral::~Deferral() = default;

bool is_deferred(const at::Tensor& tensor) { return DeferredStorage::of(tensor) != nullptr; }

void give_values(const at::Tensor& tensor) {
  if (auto storage = DeferredStorage::of(tensor)) storage->give_memory(true);
}

void give_memory(const at::Tensor& tensor) {
  if (auto storage = DeferredStorage::of(tensor)) storage->give_memory(false);
}

void move_to(std::span<const at::Tensor> tensors, c10::Device device) {
  const at::NoGradGuard no_gradients;
  std::map<std::shared_ptr<DeferredStorage>, LazyStorage> moved;
  for (const at::Tensor& tensor : tensors) {
    const auto storage = DeferredStorage::of(tensor);
    if (!storage || storage->memory().defined()) {
      tensor.set_data(tensor.to(device));
      continue;
    }
    auto target = moved.find(storage);
    if (target == moved.end()) target = moved.emplace(storage, storage->on(device)).first;
    // Otherwise the comparison of the types would count as a use of the values.
    const c10::impl::ExcludeDispatchKeyGuard not_used(dispatch::key());
    tensor.set_data(target->second.place(tensor.scalar_type(), tensor.storage_offset(),
                                         tensor.sizes(), tensor.strides()));
  }
}

at::Tensor as_ordinary(const at::Tensor& tensor) {
  auto storage = DeferredStorage::of(tensor);
  storage->give_memory(true);
  return tensor_in(storage->memory(), place_of(tensor, storage->id()));
}

}  // namespace lockstep::dispatch
