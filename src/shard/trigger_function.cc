#include "shard/trigger_function.h"

#include "shard/deferral/recorder.h"
#include "shard/each_tensor.h"
#include "shard/part_use.h"

#include <lockstep/shard/lazy_storage.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::shard {
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

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool makes_a_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const c10::Argument& result = schema.returns().front();
  return result.alias_info() != nullptr && !writes(result);
}

// Some backends answer set_data()'s question themselves. It is about kinds, and reads no values.
bool reads_nothing(const c10::FunctionSchema& schema) {
  return schema.name() == "aten::_has_compatible_shallow_copy_type";
}

// action(owner, use) for every argument that lies in a lazy storage.
template <typename Action>
void for_each_use(const c10::OperatorHandle& operation, const torch::jit::Stack& stack,
                  c10::DispatchKey key, Action&& action) {
  const c10::FunctionSchema& schema = operation.schema();
  auto arguments = torch::jit::last(stack, schema.arguments().size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor_in(arguments[i], [&](const c10::TensorImpl& tensor) {
      if (!tensor.key_set().has(key)) return;
      if (auto owner = owner_of(tensor))
        action(std::move(owner),
               StorageUse{schema.name(), tensor.storage_offset(), writes(schema.arguments()[i])});
    });
  }
}

}  // namespace

void run_with_memory(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  if (Recorder* recorder = Recorder::of_this_thread())
    return recorder->run(operation, keys, *stack);
  c10::DispatchKey key = keys.highestPriorityTypeId();
  c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
  if (reads_nothing(operation.schema())) return operation.redispatchBoxed(below, stack);
  // Some operations return a view or a copy, as it comes out: what copies inside comes here again.
  if (makes_a_view(operation.schema())) {
    for_each_use(operation, *stack, key, [](auto owner, const auto& use) { owner->view(use); });
    return operation.redispatchBoxed(below, stack);
  }
  PartUse parts(operation, *stack, key);
  Pins pins;
  for_each_use(operation, *stack, key,
               [&](auto owner, const auto& use) { pins.add(std::move(owner), use); });
  pins.pin_all();
  {
    c10::impl::ExcludeDispatchKeyGuard without_key(key);
    operation.redispatchBoxed(below, stack);
  }
  pins.announce_writes();
  parts.mark_results(*stack);
}

}  // namespace lockstep::shard
