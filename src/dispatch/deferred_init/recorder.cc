#include "dispatch/deferred_init/recorder.h"

#include "base/check.h"
#include "dispatch/key.h"
#include "dispatch/lazy_storage.h"

#include <lockstep/dispatch/deferred_init.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::dispatch {
namespace {

constexpr const char* no_memory =
    "this tensor was made by deferred(), and has no memory yet; use it in an operation, or call "
    "make_values() on its module first";

}  // namespace

// The storage of a deferred tensor. Lives as long as the storage. Thread-safe.
class DeferredStorage final : public StorageOwner, public StorageRecord {
 public:
  // Returns a tensor in a new storage of `bytes` bytes that has not been written.
  [[nodiscard]] static at::Tensor make(std::int64_t bytes, const at::Tensor& shape) {
    auto made = std::make_shared<DeferredStorage>();
    made->id_ = std::make_shared<const StorageSpec>(StorageSpec{bytes});
    LazyStorage storage(bytes, c10::kCPU, made, dispatch::key(), no_memory, made);
    made->storage_ = &storage.impl();
    return storage.place(shape.scalar_type(), shape.storage_offset(), shape.sizes(),
                         shape.strides());
  }

  // Returns null if `tensor` is not in a deferred storage.
  [[nodiscard]] static std::shared_ptr<DeferredStorage> of(const at::Tensor& tensor) {
    if (!tensor.defined()) return nullptr;
    return std::dynamic_pointer_cast<DeferredStorage>(owner_of(*tensor.unsafeGetTensorImpl()));
  }

  // Returns a new storage whose memory will be on `device`, with the values that this one has now.
  // The new storage keeps the id, because recorded calls refer to the storage by its id.
  [[nodiscard]] LazyStorage on(c10::Device device) const {
    auto made = std::make_shared<DeferredStorage>();
    made->id_ = id_;
    made->device_ = device;
    made->last_write_ = last_write();
    made->time_ = time();
    LazyStorage storage(id_->bytes, device, made, dispatch::key(), no_memory, made);
    made->storage_ = &storage.impl();
    return storage;
  }

  [[nodiscard]] const StorageId& id() const { return id_; }

  // Returns the last call that wrote the storage; null if it has memory or was not written.
  [[nodiscard]] std::shared_ptr<const RecordedCall> last_write() const {
    std::lock_guard lock(mutex_);
    return last_write_;
  }

  void set_last_write(std::shared_ptr<const RecordedCall> call) {
    std::lock_guard lock(mutex_);
    last_write_ = std::move(call);
  }

  // RecordedCall::time of the last call that used the storage.
  [[nodiscard]] std::int64_t time() const {
    std::lock_guard lock(mutex_);
    return time_;
  }

  void set_time(std::int64_t time) {
    std::lock_guard lock(mutex_);
    time_ = time;
  }

  // Returns the storage's memory; undefined if it has none yet.
  [[nodiscard]] at::Tensor memory() const {
    std::lock_guard lock(mutex_);
    return memory_;
  }

  void give_memory(const at::Tensor& memory) {
    std::lock_guard lock(mutex_);
    memory_ = memory;
    last_write_.reset();
    LazyStorage::attach(*storage_, memory_);
  }

  void give_memory(bool with_values) {
    std::lock_guard lock(mutex_);
    if (memory_.defined()) return;
    memory_ = made_memory(with_values);
    last_write_.reset();
    LazyStorage::attach(*storage_, memory_);
  }

  void pin(const StorageUse&) override { give_memory(true); }

  void written() override {}
  void unpin() noexcept override {}

 private:
  // Returns new memory on the device, with the values of the last write if they are wanted.
  [[nodiscard]] at::Tensor made_memory(bool with_values) const {
    const c10::InferenceMode off(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (!device_.is_cpu() && !with_values)
      return at::empty({id_->bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
    return replayed(with_values ? last_write_ : nullptr, id_).to(device_);
  }

  mutable std::mutex mutex_;
  StorageId id_;
  c10::Device device_{c10::kCPU};        // of the memory
  c10::StorageImpl* storage_ = nullptr;  // the caller holds a tensor in it
  std::shared_ptr<const RecordedCall> last_write_;
  std::int64_t time_ = 0;
  at::Tensor memory_;
};

namespace {

using Operation = c10::OperatorHandle;
using torch::jit::Stack;

// If more calls than this would have to run again one after another, the values are kept.
constexpr int deepest = 64;

thread_local Recorder* recorder_of_this_thread = nullptr;

// Returns true if the call makes views or turns a tensor into another view of its storage.
bool only_looks_elsewhere(const Call& call) {
  return call.kind() == Call::Kind::view || call.operation().hasTag(at::Tag::inplace_view);
}

// Returns true if the operation is composed of others, which reach the recorder one by one.
bool is_composite(const Operation& operation) {
  using c10::DispatchKey;
  return (operation.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
          operation.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) &&
         !operation.hasKernelForDispatchKey(DispatchKey::CPU) &&
         !operation.hasKernelForDispatchKey(DispatchKey::CUDA);
}

bool is_random(const Operation& operation) {
  return operation.hasTag(at::Tag::nondeterministic_seeded);
}

// Returns true if the new values of the first argument do not depend on its old ones.
bool overwrites(std::string_view operation) {
  constexpr std::string_view names[] = {
      "aten::uniform_",   "aten::normal_", "aten::random_", "aten::exponential_", "aten::cauchy_",
      "aten::geometric_", "aten::zero_",   "aten::fill_",   "aten::log_normal_",  "aten::copy_"};
  return std::ranges::find(names, operation) != std::end(names);
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

// Copies an argument, because the program may change or free it before the call runs again. Wrapped
// numbers, which have no dtype of their own, are kept: a copy would lose that property.
at::Tensor kept(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  Recorder::Pause pause;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.clone();
}

// Copies the generator that the call is about to draw from; returns its index, or -1 if it has
// none.
int keep_generator(const Operation& operation, Stack& arguments) {
  auto index = operation.schema().argumentIndexWithName("generator");
  if (!index) return -1;
  c10::IValue& argument = arguments[static_cast<std::size_t>(*index)];
  at::Generator generator =
      argument.isNone() ? at::globalContext().defaultGenerator(c10::kCPU) : argument.toGenerator();
  std::lock_guard lock(generator.mutex());
  argument = generator.clone();
  return *index;
}

}  // namespace

// The deferred tensors without memory among the arguments of a call.
struct Recorder::Uses {
  struct Use {
    RecordedCall::Argument argument;
    at::Tensor tensor;
    std::shared_ptr<DeferredStorage> storage;
    bool writes = false;
  };

  Uses(const Operation& operation, const Stack& arguments) {
    for_each_tensor_on(arguments, [&](StackIndex where, const at::Tensor& tensor) {
      auto storage = DeferredStorage::of(tensor);
      if (!storage || storage->memory().defined()) return;
      all.push_back({{where, place_of(tensor, storage->id())},
                     tensor,
                     storage,
                     is_written(operation.schema().arguments()[where.item])});
    });
  }

  // Returns true if the call overwrites all values of the first tensor's storage.
  [[nodiscard]] bool overwrite(const Operation& operation) const {
    const Use& first = all.front();
    bool once = std::ranges::count(all, first.storage, &Use::storage) == 1;
    return first.argument.where.item == 0 && once && fills_its_storage(first.tensor) &&
           overwrites(operation.schema().name());
  }

  [[nodiscard]] std::vector<RecordedCall::Argument> arguments() const {
    std::vector<RecordedCall::Argument> list;
    for (const Use& use : all) list.push_back(use.argument);
    return list;
  }

  std::vector<Use> all;
};

Recorder* Recorder::of_this_thread() { return recorder_of_this_thread; }

Recorder::Turn::Turn(Recorder* recorder)
    : before_(std::exchange(recorder_of_this_thread, recorder)) {}

Recorder::Turn::~Turn() { recorder_of_this_thread = before_; }

void Recorder::run(Call& call) {
  const Operation& operation = call.operation();
  Stack& stack = call.stack();
  if (only_looks_elsewhere(call)) return call.redispatch();
  std::size_t count = operation.schema().arguments().size();
  Stack arguments(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  Uses uses(operation, arguments);
  if (uses.all.empty()) {
    if (make_memory(operation, stack)) return;
    if (is_composite(operation)) return call.redispatch();
    Pause pause;
    return call.proceed();
  }
  torch::jit::drop(stack, count);
  compute(operation, arguments, uses);
  stack.insert(stack.end(), arguments.begin(), arguments.end());
}

// Returns true if the operation only allocates memory, at least `smallest` bytes.
bool Recorder::make_memory(const Operation& operation, Stack& stack) {
  const c10::FunctionSchema& schema = operation.schema();
  if (schema.name() != "aten::empty" && schema.name() != "aten::empty_strided") return false;
  auto index_of = [&](const char* name) { return schema.argumentIndexWithName(name); };
  auto device_index = index_of("device"), pin_index = index_of("pin_memory");
  if (!device_index || !pin_index) return false;
  Stack arguments(stack.end() - static_cast<std::ptrdiff_t>(schema.arguments().size()),
                  stack.end());
  c10::IValue& device_argument = arguments[static_cast<std::size_t>(*device_index)];
  const c10::IValue& pin = arguments[static_cast<std::size_t>(*pin_index)];
  c10::Device device =
      device_argument.isNone() ? c10::Device(c10::kCPU) : device_argument.toDevice();
  if (!device.is_cpu() || (pin.isBool() && pin.toBool())) return false;
  device_argument = c10::Device(c10::kMeta);
  run_plainly(operation, arguments);
  at::Tensor shape = arguments.front().toTensor();
  if (shape.layout() != at::kStrided) return false;
  auto bytes = static_cast<std::int64_t>(shape.storage().nbytes());
  if (bytes == 0 || bytes < smallest_) return false;
  torch::jit::drop(stack, schema.arguments().size());
  stack.emplace_back(DeferredStorage::make(bytes, shape));
  return true;
}

// `items` are the arguments, followed by the results.
void Recorder::compute(const Operation& operation, Stack& items, Uses& uses) {
  auto call = std::make_shared<RecordedCall>(
      RecordedCall{.operation = operation, .arguments = items, .deferred = uses.arguments()});
  for_each_tensor_on(items, [&](StackIndex where, const at::Tensor& tensor) {
    bool is_deferred =
        std::ranges::any_of(call->deferred, [&](const auto& one) { return one.where == where; });
    set_tensor(call->arguments, where, is_deferred ? at::Tensor() : kept(tensor));
  });
  if (is_random(operation)) call->generator = keep_generator(operation, call->arguments);
  for (const Uses::Use& use : uses.all) call->time = std::max(call->time, use.storage->time() + 1);
  for (const Uses::Use& use : uses.all) use.storage->set_time(call->time);
  bool overwrite = uses.overwrite(operation);
  for (std::size_t i = overwrite ? 1 : 0; i < uses.all.size(); ++i) {
    auto before = uses.all[i].storage->last_write();
    if (before == nullptr) continue;
    call->depth = std::max(call->depth, before->depth + 1);
    call->before.push_back(std::move(before));
  }
  Memories memories = values_of(uses, overwrite);
  recent_.clear();
  Stack run_on = filled(std::move(items), call->deferred, memories);
  items = run_on;
  run_plainly(operation, items);
  bool lasting = call->depth <= deepest && (!is_random(operation) || call->generator >= 0);
  give_back(uses, run_on, items);
  if (lasting) defer_large(items, call);
  for (const Uses::Use& use : uses.all) {
    const at::Tensor& memory = memories.at(use.storage->id());
    if (use.writes && lasting) use.storage->set_last_write(call);
    if (use.writes && !lasting) use.storage->give_memory(memory);
    if (!use.storage->memory().defined())
      recent_[use.storage->id()] = {use.storage->last_write(), memory};
  }
}

Memories Recorder::values_of(const Uses& uses, bool overwrite) const {
  Memories memories;
  for (std::size_t i = overwrite ? 1 : 0; i < uses.all.size(); ++i) {
    const DeferredStorage& storage = *uses.all[i].storage;
    at::Tensor& memory = memories[storage.id()];
    if (memory.defined()) continue;
    auto recent = recent_.find(storage.id());
    bool is_there = recent != recent_.end() && recent->second.after == storage.last_write();
    memory = is_there ? recent->second.memory : replayed(storage.last_write(), storage.id());
  }
  return memories;
}

// If the operation returned one of the arguments it ran on, returns the program's argument instead.
void Recorder::give_back(const Uses& uses, const Stack& run_on, Stack& results) {
  for_each_tensor_on(Stack(results), [&](StackIndex where, const at::Tensor& result) {
    for_each_tensor_on(run_on, [&](StackIndex at, const at::Tensor& argument) {
      if (!argument.is_same(result)) return;
      for (const Uses::Use& use : uses.all)
        if (use.argument.where == at) set_tensor(results, where, use.tensor);
    });
  });
}

void Recorder::defer_large(Stack& results, const std::shared_ptr<RecordedCall>& call) {
  for_each_tensor_on(Stack(results), [&](StackIndex where, const at::Tensor& result) {
    if (result.layout() != at::kStrided || !result.device().is_cpu() || is_lazy(result)) return;
    auto bytes = static_cast<std::int64_t>(result.storage().nbytes());
    if (bytes == 0 || bytes < smallest_ || result.is_conj() || result.is_neg()) return;
    at::Tensor deferred = DeferredStorage::make(bytes, result);
    auto storage = DeferredStorage::of(deferred);
    storage->set_last_write(call);
    storage->set_time(call->time);
    call->made.push_back({where, storage->id()});
    recent_[storage->id()] = {call, copy_of_storage(result)};
    set_tensor(results, where, deferred);
  });
}

void record_operation(Call& call) {
  Recorder* recorder = Recorder::of_this_thread();
  if (recorder == nullptr) return call.proceed();
  recorder->run(call);
}

struct DeferredInit::Scope {
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

DeferredInit::DeferredInit(std::int64_t smallest) : scope_(std::make_unique<Scope>(smallest)) {}
DeferredInit::~DeferredInit() = default;

bool is_deferred(const at::Tensor& tensor) { return DeferredStorage::of(tensor) != nullptr; }

void give_values(const at::Tensor& tensor) {
  if (auto storage = DeferredStorage::of(tensor)) storage->give_memory(true);
}

void give_memory(const at::Tensor& tensor) {
  if (auto storage = DeferredStorage::of(tensor)) storage->give_memory(false);
}

namespace {

// Returns true if the tensor's bytes, dtype, sizes and strides are all that a copy of it needs.
bool is_place_in_storage(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && tensor.numel() > 0 &&
         !tensor.is_nested() && !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
}

// Moves the part of a storage that these tensors use, so that they share memory on the device, too.
void move_together(std::span<const at::Tensor> tensors, c10::Device device) {
  // A single view with gaps is copied without them.
  const at::Tensor& first = tensors.front();
  if (tensors.size() == 1 && (first.numel() == 0 || !first.is_non_overlapping_and_dense())) {
    first.set_data((is_deferred(first) ? as_ordinary(first) : first).to(device));
    return;
  }
  constexpr std::int64_t alignment = 64;  // a multiple of the size of every dtype
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const std::size_t bytes = at::detail::computeStorageNbytes(
        tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
    begin = std::min(begin, tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize()));
    end = std::max(end, static_cast<std::int64_t>(bytes));
  }
  begin = std::min(begin, end) / alignment * alignment;
  const at::Tensor part =
      tensor_in(is_deferred(first) ? as_ordinary(first) : first,
                {.dtype = at::kByte, .sizes = {end - begin}, .strides = {1}, .offset = begin});
  const at::Tensor moved = part.to(device);
  if (moved.is_same(part)) return;  // the tensors are on the device already
  for (const at::Tensor& tensor : tensors) {
    TensorPlace place = place_of(tensor, nullptr);
    if (tensor.numel() == 0)
      place.offset = 0;
    else
      place.offset -= begin / static_cast<std::int64_t>(tensor.itemsize());
    tensor.set_data(tensor_in(moved, place));
  }
}

}  // namespace

void move_to(std::span<const at::Tensor> tensors, c10::Device device) {
  const at::NoGradGuard no_gradients;
  std::map<std::shared_ptr<DeferredStorage>, LazyStorage> moved;
  std::map<const c10::StorageImpl*, std::vector<at::Tensor>> with_memory;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const auto storage = DeferredStorage::of(tensor);
    if (!storage && !is_place_in_storage(tensor)) {
      tensor.set_data(tensor.to(device));
      continue;
    }
    if (!storage || storage->memory().defined()) {
      with_memory[tensor.storage().unsafeGetStorageImpl()].push_back(tensor);
      continue;
    }
    auto target = moved.find(storage);
    if (target == moved.end()) target = moved.emplace(storage, storage->on(device)).first;
    // Without this guard, the comparison of the types would count as a use of the values.
    const c10::impl::ExcludeDispatchKeyGuard not_used(dispatch::key());
    tensor.set_data(target->second.place(tensor.scalar_type(), tensor.storage_offset(),
                                         tensor.sizes(), tensor.strides()));
  }
  for (const auto& [storage, sharing] : with_memory) move_together(sharing, device);
}

at::Tensor as_ordinary(const at::Tensor& tensor) {
  auto storage = DeferredStorage::of(tensor);
  storage->give_memory(true);
  return tensor_in(storage->memory(), place_of(tensor, storage->id()));
}

}  // namespace lockstep::dispatch
