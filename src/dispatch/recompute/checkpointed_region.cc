#include "dispatch/recompute/checkpointed_region.h"

#include "base/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace lockstep::dispatch {
namespace {

constexpr std::string_view released_text =
    "this activation has no memory between forward and backward (checkpoint_activations()): use it "
    "in an operation, which computes it again";

// Returns all bytes of a storage.
at::Tensor bytes_of(const c10::Storage& storage) {
  c10::InferenceMode off(false);
  return place_in(storage, at::kByte, 0, static_cast<std::int64_t>(storage.nbytes()), 1);
}

const Activation* activation_of(const at::Tensor& memory) {
  if (!is_lazy(memory)) return nullptr;
  return dynamic_cast<const Activation*>(record_of(*memory.unsafeGetTensorImpl()));
}

// Returns true for running statistics, which batch normalisation updates, whether or not its schema
// says so. Its results do not depend on them.
bool is_running_statistic(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

// Sets the generator to an earlier state during the object's lifetime.
class NumbersAgain {
 public:
  explicit NumbersAgain(const std::optional<RandomState>& random) : random_(random) {
    if (!random_) return;
    at::Generator generator = random_->generator;
    std::lock_guard lock(generator.mutex());
    now_ = generator.get_state();
    generator.set_state(random_->state);
  }
  ~NumbersAgain() {
    if (!random_) return;
    at::Generator generator = random_->generator;
    std::lock_guard lock(generator.mutex());
    generator.set_state(now_);
  }
  NumbersAgain(const NumbersAgain&) = delete;
  NumbersAgain& operator=(const NumbersAgain&) = delete;

 private:
  const std::optional<RandomState>& random_;
  at::Tensor now_;
};

}  // namespace

at::Tensor memory_of(const at::Tensor& tensor, c10::DispatchKey key) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return {};
  if (DispatchDelegate* delegate = delegate_of(*tensor.unsafeGetTensorImpl(), key))
    return delegate->memory();
  return tensor.has_storage() && !tensor.is_meta() ? tensor : at::Tensor();
}

CheckpointedRegion::Storages storages_in(const torch::jit::Stack& items, c10::DispatchKey key) {
  CheckpointedRegion::Storages used;
  for_each_tensor_on(items, [&](StackIndex, const at::Tensor& tensor) {
    if (const at::Tensor memory = memory_of(tensor, key); memory.defined())
      used.insert(memory.storage().unsafeGetStorageImpl());
  });
  return used;
}

bool CheckpointedRegion::has(const at::Tensor& tensor) const {
  const Activation* activation = activation_of(memory_of(tensor, key_));
  return activation != nullptr && activation->region() == this;
}

void CheckpointedRegion::add(const Call& call, const torch::jit::Stack& arguments,
                             std::optional<RandomState> random) {
  std::lock_guard lock(mutex_);
  Operation operation{.handle = call.operation(), .random = std::move(random)};
  if (model_->offloads()) return take_results(operation, call, arguments);
  take_arguments(operation, arguments);
  const auto& schema = call.operation().schema().arguments();
  for (const Use& use : operation.uses) {
    Entry& entry = entries_[use.entry];
    if (!is_written(schema[use.where.item])) {
      entry.is_read = true;
      continue;
    }
    operation.written.push_back(use.entry);
    entry.is_changed = entry.is_changed || entry.is_read;
  }
  for (std::size_t i = 0; i < schema.size(); ++i)
    if (is_running_statistic(schema[i]) && arguments[i].isTensor() &&
        arguments[i].toTensor().defined())
      operation.copied.push_back({i});
  take_results(operation, call, arguments);
  operations_.push_back(std::move(operation));
}

void CheckpointedRegion::take_arguments(Operation& operation, const torch::jit::Stack& arguments) {
  operation.arguments = arguments;
  const auto& schema = operation.handle.schema().arguments();
  for_each_tensor_on(arguments, [&](StackIndex where, const at::Tensor& tensor) {
    const at::Tensor memory = memory_of(tensor, key_);
    const Activation* activation = activation_of(memory);
    if (activation == nullptr || activation->region() != this) {
      if (!tensor.is_inference() && !is_running_statistic(schema[where.item]))
        operation.versions.push_back({where, tensor._version()});
      return;
    }
    DispatchDelegate* delegate = delegate_of(*tensor.unsafeGetTensorImpl(), key_);
    operation.uses.push_back({where, activation->number(), place_of(memory, nullptr),
                              delegate ? delegate->maker() : nullptr});
    set_tensor(operation.arguments, where, at::Tensor());
  });
}

void CheckpointedRegion::take_results(Operation& operation, const Call& call,
                                      const torch::jit::Stack& arguments) {
  const Storages given = storages_in(arguments, key_);
  torch::jit::Stack& stack = call.stack();
  const std::size_t count = call.operation().schema().returns().size();
  torch::jit::Stack results(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  const bool is_kept = model_->keeps(call.operation().schema().name());
  std::map<const c10::StorageImpl*, std::pair<std::size_t, c10::Storage>> made;
  for_each_tensor_on(results, [&](StackIndex where, const at::Tensor& result) {
    const at::Tensor memory = memory_of(result, key_);
    if (!memory.defined() || is_lazy(memory) || memory.storage().nbytes() == 0) return;
    const c10::StorageImpl* storage = memory.storage().unsafeGetStorageImpl();
    if (given.contains(storage)) return;
    auto found = made.find(storage);
    if (found == made.end()) {
      const std::size_t entry = entries_.size();
      Entry& added = entries_.emplace_back();
      const auto owner = std::make_shared<Activation>(shared_from_this(), entry, added.is_there);
      LazyStorage lazy(static_cast<std::int64_t>(storage->nbytes()), memory.device(), owner, key_,
                       std::string(released_text), owner);
      lazy.attach(bytes_of(memory.storage()));
      added.storage = lazy.storage().getWeakStorageImpl();
      added.bytes = static_cast<std::int64_t>(storage->nbytes());
      added.is_kept = is_kept || model_->is_used_outside(block_, entry);
      if (is_kept) added.memory = bytes_of(memory.storage());
      found = made.emplace(storage, std::pair(entry, lazy.storage())).first;
    }
    const auto& [entry, storage_of_entry] = found->second;
    at::Tensor tensor = place_in(storage_of_entry, memory.scalar_type(), memory.storage_offset(),
                                 memory.sizes(), memory.strides(), c10::DispatchKeySet(key_));
    DispatchDelegate* delegate = delegate_of(*result.unsafeGetTensorImpl(), key_);
    set_tensor(results, where, delegate ? delegate->in_memory(std::move(tensor)) : tensor);
    operation.made.push_back({where, entry});
  });
  std::ranges::move(results, stack.end() - static_cast<std::ptrdiff_t>(count));
}

void CheckpointedRegion::note_writes(const c10::FunctionSchema& schema,
                                     const torch::jit::Stack& arguments) {
  std::lock_guard lock(mutex_);
  for_each_tensor_on(arguments, [&](StackIndex where, const at::Tensor& tensor) {
    const Activation* activation = activation_of(memory_of(tensor, key_));
    if (activation != nullptr && activation->region() == this &&
        is_written(schema.arguments()[where.item]))
      entries_[activation->number()].is_changed = true;
  });
}

void CheckpointedRegion::keep_all() {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) entry.is_kept = true;
}

void CheckpointedRegion::end(const Storages& used) {
  std::lock_guard lock(mutex_);
  if (std::exchange(has_ended_, true)) return;
  const bool offloads = model_->offloads();
  if (offloads) model_->depart(nullptr);  // before the next copies, so as not to wait for these
  std::unique_ptr<HostCopies> copies;
  std::int64_t bytes = 0;
  for (Entry& entry : entries_) {
    const auto storage = entry.storage.lock();
    if (!storage || !entry.is_there) continue;
    if (used.contains(storage.get())) entry.is_kept = true;
    if (entry.is_kept || (offloads && !offload(entry, *storage, copies))) continue;
    LazyStorage::detach(*storage, released_text);
    entry.is_there = false;
    bytes += entry.bytes;
  }
  if (offloads) model_->depart(std::move(copies));
  model_->count_end(bytes);
}

// Runs those operations of a region again that some of its entries need.
class CheckpointedRegion::Replay {
 public:
  Replay(CheckpointedRegion& region, std::vector<bool> wanted)
      : region_(region), wanted_(std::move(wanted)), needed_(wanted_) {
    choose();
  }

  std::int64_t run() {
    std::int64_t count = 0;
    memories_.resize(region_.entries_.size());
    for (std::size_t i = 0; i < region_.operations_.size(); ++i) {
      if (!runs_[i]) continue;
      run(region_.operations_[i]);
      ++count;
      for (std::size_t entry = 0; entry < last_use_.size(); ++entry)
        if (last_use_[entry] == i) memories_[entry].reset();
    }
    return count;
  }

 private:
  // Returns an entry's storage if it still has the values that operations read.
  [[nodiscard]] c10::Storage there(std::size_t number) const {
    const Entry& entry = region_.entries_[number];
    if (entry.is_changed) return {};
    if (entry.memory.defined()) return entry.memory.storage();
    return entry.is_there ? c10::Storage(entry.storage.lock()) : c10::Storage();
  }

  void choose() {
    const auto& operations = region_.operations_;
    runs_.assign(operations.size(), false);
    last_use_.assign(region_.entries_.size(), operations.size());
    for (std::size_t i = operations.size(); i-- > 0;) {
      const Operation& operation = operations[i];
      const auto is_needed = [&](std::size_t entry) { return needed_[entry]; };
      runs_[i] = std::ranges::any_of(operation.made, is_needed, &Made::entry) ||
                 std::ranges::any_of(operation.written, is_needed);
      if (!runs_[i]) continue;
      const auto use = [&](std::size_t entry) {
        if (last_use_[entry] == operations.size()) last_use_[entry] = i;
      };
      for (const Made& made : operation.made) use(made.entry);
      for (const Use& one : operation.uses) {
        use(one.entry);
        if (!there(one.entry)) needed_[one.entry] = true;
      }
    }
  }

  [[nodiscard]] at::Tensor memory(std::size_t entry) const {
    if (memories_[entry].defined()) return memories_[entry];
    return bytes_of(there(entry));
  }

  void run(const Operation& operation) {
    torch::jit::Stack stack = operation.arguments;
    for (const auto& [where, version] : operation.versions)
      check_version(operation, stack, where, version);
    for (const StackIndex& where : operation.copied)
      stack[where.item] = stack[where.item].toTensor().clone();
    for (const Use& use : operation.uses) {
      at::Tensor tensor = tensor_in(memory(use.entry), use.place);
      set_tensor(stack, use.where, use.delegate ? use.delegate(std::move(tensor)) : tensor);
    }
    {
      const NumbersAgain numbers(operation.random);
      run_plainly(operation.handle, stack);
    }
    for_each_tensor_on(stack, [&](StackIndex where, const at::Tensor& result) {
      for (const Made& made : operation.made)
        if (made.where == where) take(made.entry, memory_of(result, region_.key_));
    });
  }

  void take(std::size_t number, const at::Tensor& result) {
    if (memories_[number].defined()) return;
    memories_[number] = bytes_of(result.storage());
    Entry& entry = region_.entries_[number];
    if (!wanted_[number]) return;
    if (const auto storage = entry.storage.lock()) LazyStorage::attach(*storage, memories_[number]);
    entry.is_there = true;
  }

  static void check_version(const Operation& operation, const torch::jit::Stack& stack,
                            StackIndex where, std::int64_t version) {
    const c10::IValue& item = stack[where.item];
    const at::Tensor tensor =
        where.element < 0 ? item.toTensor()
                          : item.toList().get(static_cast<std::size_t>(where.element)).toTensor();
    check(tensor._version() == version,
          "checkpoint_activations: {}: its arguments must not change between forward and backward, "
          "found one of sizes [{}] that has been written",
          operation.handle.schema().name(), listed(tensor.sizes(), ", "));
  }

  CheckpointedRegion& region_;
  const std::vector<bool> wanted_;
  std::vector<bool> needed_;           // entries whose earlier values are needed
  std::vector<bool> runs_;             // per operation
  std::vector<std::size_t> last_use_;  // by entry: the last operation that runs and uses it
  std::vector<at::Tensor> memories_;   // by entry: its bytes
};

void CheckpointedRegion::pin(std::size_t number, bool writes) {
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[number];
  if (writes && has_ended_) entry.is_kept = entry.is_changed = true;
  if (return_) end_return();
  if (entry.is_there) return;
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  std::vector<bool> wanted = released();
  if (!in_backward) {
    wanted.assign(entries_.size(), false);
    entry.is_kept = true;
    model_->note_use_outside(block_, number);
  }
  wanted[number] = true;
  if (!model_->offloads()) return recompute(std::move(wanted));
  begin_return(wanted);
  end_return();
}

void CheckpointedRegion::recompute(std::vector<bool> wanted) {
  at::NoGradGuard no_grad;
  const BlockPause pause;
  model_->count_replay(Replay(*this, std::move(wanted)).run());
}

bool CheckpointedRegion::offload(Entry& entry, c10::StorageImpl& storage,
                                 std::unique_ptr<HostCopies>& copies) {
  constexpr std::int64_t least_bytes = 1 << 10;
  if (storage.device().is_cpu() || entry.bytes < least_bytes) return false;
  if (!copies) copies = std::make_unique<HostCopies>(model_->copy_stream(storage.device()));
  entry.host = copies->to_host(LazyStorage::buffer_of(storage));
  return true;
}

void CheckpointedRegion::begin_return(const std::vector<bool>& wanted) {
  model_->depart(nullptr);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    at::Tensor& host = entries_[i].host;
    const auto storage = entries_[i].storage.lock();
    if (!wanted[i] || !storage || !host.defined()) continue;
    if (!return_) return_ = std::make_unique<HostCopies>(model_->copy_stream(storage->device()));
    returning_.emplace_back(i, return_->to_device(host));
  }
}

void CheckpointedRegion::end_return() {
  return_.reset();  // waits
  for (auto& [number, bytes] : returning_) {
    Entry& entry = entries_[number];
    if (const auto storage = entry.storage.lock()) LazyStorage::attach(*storage, bytes);
    entry.is_there = true;
    entry.host.reset();
  }
  returning_.clear();
  const auto before = before_.lock();
  if (before && torch::autograd::get_current_graph_task_id() >= 0) before->prefetch();
}

void CheckpointedRegion::prefetch() {
  std::lock_guard lock(mutex_);
  if (!return_) begin_return(released());
}

std::vector<bool> CheckpointedRegion::released() const {
  std::vector<bool> found;
  for (const Entry& entry : entries_) found.push_back(!entry.is_there && !entry.storage.expired());
  return found;
}

}  // namespace lockstep::dispatch
