#include "dispatch/memory.h"

#include "dispatch/each_tensor.h"
#include "dispatch/lazy_storage.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::dispatch {
namespace {

class Pins {
 public:
  Pins() = default;
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;
  ~Pins() {
    for (auto& [owner, writes] : pins_) owner->unpin();
  }

  void add(std::shared_ptr<StorageOwner> owner, const StorageUse& use) {
    auto same = std::find_if(wanted_.begin(), wanted_.end(),
                             [&](const Wanted& wanted) { return wanted.owner == owner; });
    if (same != wanted_.end()) {
      same->use.writes |= use.writes;
      return;
    }
    wanted_.push_back({std::move(owner), use});
  }

  // An owner is asked once, for all that the operation does with its storage.
  void pin_all() {
    for (Wanted& wanted : wanted_) {
      wanted.owner->pin(wanted.use);
      pins_.push_back({std::move(wanted.owner), wanted.use.writes});
    }
  }

  void announce_writes() {
    for (auto& [owner, writes] : pins_)
      if (writes) owner->written();
  }

 private:
  struct Wanted {
    std::shared_ptr<StorageOwner> owner;
    StorageUse use;
  };
  struct Pin {
    std::shared_ptr<StorageOwner> owner;
    bool writes;
  };
  c10::SmallVector<Wanted, 4> wanted_;
  c10::SmallVector<Pin, 4> pins_;
};

// action(owner, use) for every argument that lies in a lazy storage.
template <typename Action>
void for_each_use(const Call& call, Action&& action) {
  const c10::FunctionSchema& schema = call.operation().schema();
  auto arguments = torch::jit::last(call.stack(), schema.arguments().size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor_in(arguments[i], [&](const c10::TensorImpl& tensor) {
      if (!tensor.key_set().has(call.key())) return;
      if (auto owner = owner_of(tensor))
        action(std::move(owner), StorageUse{schema.name(), tensor.storage_offset(),
                                            is_written(schema.arguments()[i])});
    });
  }
}

}  // namespace

MemoryUse::MemoryUse(const at::Tensor& tensor, std::string_view operation)
    : owner_(tensor.defined() ? owner_of(*tensor.unsafeGetTensorImpl()) : nullptr) {
  if (owner_) owner_->pin({.operation = operation, .offset = tensor.storage_offset()});
}

MemoryUse::~MemoryUse() {
  if (owner_) owner_->unpin();
}

void bring_memory(Call& call) {
  if (call.kind() == Call::Kind::view)
    for_each_use(call, [](auto owner, const auto& use) { owner->view(use); });
  if (call.kind() != Call::Kind::compute) return call.proceed();
  Pins pins;
  for_each_use(call, [&](auto owner, const auto& use) { pins.add(std::move(owner), use); });
  pins.pin_all();
  call.proceed();
  pins.announce_writes();
}

}  // namespace lockstep::dispatch
