#include <lockstep/dispatch/deferral.h>

#include "dispatch/deferral/deferred_storage.h"
#include "dispatch/deferral/recorder.h"
#include "dispatch/key.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

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

at::Tensor as_ordinary(const at::Tensor& tensor) {
  auto storage = DeferredStorage::of(tensor);
  storage->give_memory(true);
  return tensor_in(storage->memory(), place_of(tensor, storage->id()));
}

}  // namespace lockstep::dispatch
