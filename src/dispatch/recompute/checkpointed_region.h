// CheckpointedRegion: the operations of one pass through a block of a model, whose results take no
// memory on their device between forward and backward.
//
// Results of recorded operations are in lazy storages. At the end of the block, end() releases
// their memory, except for results that are used later. When an operation of backward() uses one of
// them, the operations that the remaining results need run again, in their order, with the same
// random numbers. Storages hold the region, and the region holds the block's inputs, so everything
// is released with the graph.
//
// If the model offloads, no operation is recorded. end() copies results on a device to pinned host
// memory, and they are copied back together, beside the backward pass of the block after this one.
//
// Thread-safe after end().
#pragma once

#include "dispatch/call.h"
#include "dispatch/deferred_init/recorded_call.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/recompute/activation_checkpoint_state.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace lockstep::dispatch {

class Activation;

// The state of a generator before an operation drew from it.
struct RandomState {
  at::Generator generator;
  at::Tensor state;
};

class CheckpointedRegion : public std::enable_shared_from_this<CheckpointedRegion> {
 public:
  using Storages = std::set<const c10::StorageImpl*>;

  // `before`: the previous block of this pass, which backward() reaches after this one; or null.
  CheckpointedRegion(std::shared_ptr<ActivationCheckpointState> model, int block,
                     c10::DispatchKey key, std::weak_ptr<CheckpointedRegion> before)
      : model_(std::move(model)), block_(block), key_(key), before_(std::move(before)) {}

  // Records an operation that has run on `arguments`. Its results are on the call's stack; results
  // in new memory are replaced by tensors in lazy storages.
  void add(const Call& call, const torch::jit::Stack& arguments, std::optional<RandomState> random);
  // Returns true if the tensor is in a storage of this region.
  [[nodiscard]] bool has(const at::Tensor& tensor) const;
  // Call after an operation that is not recorded in this region has run: notes which storages of
  // the region it has written.
  void note_writes(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments);
  // Call after data outside of the region was written. Operations recorded so far can then not run
  // again, so all their results are kept.
  void keep_all();
  // Ends the block. Keeps storages in `used`, because they are needed outside of the block.
  void end(const Storages& used);

 private:
  friend class Activation;

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    std::int64_t bytes = 0;
    std::atomic<bool> is_there = true;  // has its memory; set after the memory was attached
    bool is_kept = false;
    bool is_read = false;
    bool is_changed = false;  // written after it was read
    at::Tensor memory = {};   // keeps a result alive
    at::Tensor host = {};     // the bytes in host memory, if they are offloaded
  };
  struct Use {  // use of an entry by an operation
    StackIndex where;
    std::size_t entry = 0;
    TensorPlace place;
    std::function<at::Tensor(at::Tensor)> delegate;  // null: no delegate
  };
  struct Made {
    StackIndex where;
    std::size_t entry = 0;
  };
  struct Version {
    StackIndex where;
    std::int64_t version = 0;
  };
  struct Operation {
    c10::OperatorHandle handle;
    torch::jit::Stack arguments;  // without the uses
    std::vector<Use> uses;
    std::vector<Made> made;
    std::vector<std::size_t> written;
    std::vector<StackIndex> copied;  // statistics that it also updates
    std::vector<Version> versions;   // of inputs from outside
    std::optional<RandomState> random;
  };
  class Replay;

  void take_arguments(Operation& operation, const torch::jit::Stack& arguments);
  void take_results(Operation& operation, const Call& call, const torch::jit::Stack& arguments);
  void pin(std::size_t entry, bool writes);
  void recompute(std::vector<bool> wanted);

  // Copies the entry's results to host memory and frees its memory, unless it is in host memory or
  // very small.
  [[nodiscard]] bool offload(Entry& entry, c10::StorageImpl& storage,
                             std::unique_ptr<HostCopies>& copies);
  // Begins to copy offloaded results back.
  void begin_return(const std::vector<bool>& wanted);
  // Attaches them. In backward(), begins with those of the previous block.
  void end_return();
  void prefetch();
  // Per entry: true if it has no memory and is still in use.
  [[nodiscard]] std::vector<bool> released() const;

  const std::shared_ptr<ActivationCheckpointState> model_;
  const int block_;
  const c10::DispatchKey key_;
  const std::weak_ptr<CheckpointedRegion> before_;
  std::recursive_mutex mutex_;  // recursive: operations that run again use the region's storages
  std::deque<Entry> entries_;   // whose addresses stay
  std::vector<Operation> operations_;
  bool has_ended_ = false;
  std::vector<std::pair<std::size_t, at::Tensor>> returning_;  // by entry: its bytes
  std::unique_ptr<HostCopies> return_;                         // their copies
};

// The owner of a storage of a region.
class Activation final : public StorageOwner, public StorageRecord {
 public:
  // `is_there`: of the entry, which the region owns.
  Activation(std::shared_ptr<CheckpointedRegion> region, std::size_t number,
             const std::atomic<bool>& is_there)
      : region_(std::move(region)), number_(number), is_there_(is_there) {}

  [[nodiscard]] const CheckpointedRegion* region() const { return region_.get(); }
  [[nodiscard]] std::size_t number() const { return number_; }

  // A use of memory that is there takes no lock: the caller may hold a lock that operations of a
  // block take when they run again, under the region's lock.
  void pin(const StorageUse& use) override {
    if (use.writes || !is_there_) region_->pin(number_, use.writes);
  }
  void written() override {}
  void unpin() noexcept override {}

 private:
  const std::shared_ptr<CheckpointedRegion> region_;
  const std::size_t number_;
  const std::atomic<bool>& is_there_;
};

// Returns the tensor with the values: `tensor` itself or its delegate's memory, else an undefined
// tensor.
[[nodiscard]] at::Tensor memory_of(const at::Tensor& tensor, c10::DispatchKey key);

// Returns the storages of all tensors among arguments or results.
[[nodiscard]] CheckpointedRegion::Storages storages_in(const torch::jit::Stack& items,
                                                       c10::DispatchKey key);

}  // namespace lockstep::dispatch
