#include "dispatch/deferred_init/recorded_call.h"

#include "dispatch/deferred_init/recorder.h"
#include "dispatch/lazy_storage.h"
#include "sys/heap.h"

#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace lockstep::dispatch {
namespace {

using Calls = std::vector<std::shared_ptr<const RecordedCall>>;

// Reports to observers of LibTorch's memory (its profiler, and our tests).
void count_memory(void* data, std::int64_t bytes) {
  c10::reportMemoryUsageToProfiler(data, bytes, 0, 0, c10::kCPU);
}

// Returns `last` and all calls that must run before it, in program order.
Calls all_before(const std::shared_ptr<const RecordedCall>& last) {
  Calls calls = {last};
  std::set<const RecordedCall*> seen = {last.get()};
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (const auto& before : std::vector(calls[i]->before))
      if (seen.insert(before.get()).second) calls.push_back(before);
  std::ranges::stable_sort(calls, {}, [](const auto& call) { return call->time; });
  return calls;
}

// Returns, for each storage, the last of `calls` that uses it.
std::map<StorageId, const RecordedCall*> last_uses(const Calls& calls) {
  std::map<StorageId, const RecordedCall*> uses;
  for (const auto& call : calls) {
    for (const auto& argument : call->deferred) uses[argument.tensor.storage] = call.get();
    for (const auto& result : call->made) uses[result.storage] = call.get();
  }
  return uses;
}

void run_again(const RecordedCall& call, Memories& memories) {
  torch::jit::Stack stack = filled(call.arguments, call.deferred, memories);
  if (call.generator >= 0) {
    c10::IValue& generator = stack[static_cast<std::size_t>(call.generator)];
    generator = generator.toGenerator().clone();
  }
  run_plainly(call.operation, stack);
  for_each_tensor_on(stack, [&](StackIndex where, const at::Tensor& tensor) {
    for (const auto& made : call.made)
      if (made.where == where) memories[made.storage] = copy_of_storage(tensor);
  });
}

}  // namespace

TensorPlace place_of(const at::Tensor& tensor, const StorageId& storage) {
  return {storage, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.storage_offset()};
}

at::Tensor tensor_in(const at::Tensor& memory, const TensorPlace& place) {
  return place_in(memory.storage(), place.dtype, place.offset, place.sizes, place.strides);
}

at::Tensor new_memory(const StorageSpec& storage) {
  Recorder::Pause pause;
  c10::InferenceMode off(false);
  auto pages = sys::private_pages(static_cast<std::size_t>(storage.bytes));
  void* data = pages.get();
  count_memory(data, storage.bytes);
  auto give_back = [pages = std::move(pages), bytes = storage.bytes](void* memory) mutable {
    pages.reset();
    count_memory(memory, -bytes);
  };
  return at::from_blob(data, {storage.bytes}, std::move(give_back), at::kByte);
}

at::Tensor copy_of_storage(const at::Tensor& tensor) {
  std::size_t bytes = tensor.storage().nbytes();
  at::Tensor copy = new_memory({static_cast<std::int64_t>(bytes)});
  if (bytes > 0) std::memcpy(copy.mutable_data_ptr(), tensor.storage().data(), bytes);
  return copy;
}

void for_each_tensor_on(const torch::jit::Stack& items,
                        const std::function<void(StackIndex, const at::Tensor&)>& action) {
  for (std::size_t item = 0; item < items.size(); ++item) {
    if (items[item].isTensor()) {
      if (items[item].toTensor().defined()) action({item}, items[item].toTensor());
    } else if (items[item].isList()) {
      c10::List<c10::IValue> list = items[item].toList();
      for (std::size_t i = 0; i < list.size(); ++i) {
        c10::IValue element = list.get(i);
        if (element.isTensor() && element.toTensor().defined())
          action({item, static_cast<int>(i)}, element.toTensor());
      }
    }
  }
}

void set_tensor(torch::jit::Stack& items, StackIndex where, const at::Tensor& tensor) {
  if (where.element < 0) {
    items[where.item] = tensor;
  } else {
    c10::List<c10::IValue> list = items[where.item].toList().copy();
    list.set(static_cast<std::size_t>(where.element), tensor);
    items[where.item] = list;
  }
}

torch::jit::Stack filled(torch::jit::Stack arguments,
                         const std::vector<RecordedCall::Argument>& deferred, Memories& memories) {
  for (const auto& [where, place] : deferred) {
    at::Tensor& memory = memories[place.storage];
    if (!memory.defined()) memory = new_memory(*place.storage);
    set_tensor(arguments, where, tensor_in(memory, place));
  }
  return arguments;
}

void run_plainly(const c10::OperatorHandle& operation, torch::jit::Stack& stack) {
  Recorder::Pause pause;
  c10::InferenceMode off(false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  operation.callBoxed(stack);
}

at::Tensor replayed(const std::shared_ptr<const RecordedCall>& last, const StorageId& storage) {
  Memories memories;
  if (last) {
    Calls calls = all_before(last);
    auto uses = last_uses(calls);
    for (const auto& call : calls) {
      run_again(*call, memories);
      std::erase_if(memories, [&](const auto& one) {
        return one.first != storage && uses[one.first] == call.get();
      });
    }
  }
  at::Tensor& memory = memories[storage];
  return memory.defined() ? memory : new_memory(*storage);
}

}  // namespace lockstep::dispatch
