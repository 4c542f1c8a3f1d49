// Region: the operations of one pass through a block of a model, whose results take no memory
// between forward and backward.
//
// Results of recorded operations lie in lazy storages. When the block has been left, end() gives
// their memory back, but for what is used further on. When an operation of backward() uses one of
// them, the operations that the ones still alive need run again, in their order, with the random
// numbers that they had drawn. Storages hold the region, and the region holds what came into the
// block, so all of it goes with the graph.
//
// Thread-safe after end().
#pragma once

#include "dispatch/call.h"
#include "dispatch/deferral/recorded_call.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/recompute/recomputation.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace lockstep::dispatch {

class Activation;

// Where a generator stood before an operation drew from it.
struct RandomState {
  at::Generator generator;
  at::Tensor state;
};

class Region : public std::enable_shared_from_this<Region> {
 public:
  using Storages = std::set<const c10::StorageImpl*>;

  Region(std::shared_ptr<Recomputation> model, int block, c10::DispatchKey key)
      : model_(std::move(model)), block_(block), key_(key) {}

  // An operation has run, on `arguments`; its results are on the call's stack, and those in new
  // memory are replaced by tensors in lazy storages.
  void add(const Call& call, const torch::jit::Stack& arguments, std::optional<RandomState> random);
  // Whether a tensor lies in a storage of this region.
  [[nodiscard]] bool has(const at::Tensor& tensor) const;
  // An operation outside is about to be recorded elsewhere, and has written these of its arguments.
  void note_writes(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments);
  // Something outside was written: nothing until here can be computed again.
  void keep_all();
  // The block has been left: what lies in `used` is needed outside and stays.
  void end(const Storages& used);

 private:
  friend class Activation;

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::int64_t bytes = 0;
    bool is_there = true;
    bool is_kept = false;
    bool is_read = false;
    bool is_changed = false;  // written after it was read
    at::Tensor memory = {};   // of a result that stays though nobody else may hold it
  };
  struct Use {  // of an entry by an operation
    StackIndex where;
    std::size_t entry = 0;
    TensorPlace place;
    std::function<at::Tensor(at::Tensor)> carrier;  // null: none
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
    std::vector<StackIndex> copied;  // statistics that it updates besides
    std::vector<Version> versions;   // of what came from outside
    std::optional<RandomState> random;
  };
  class Replay;

  void take_arguments(Operation& operation, const torch::jit::Stack& arguments);
  void take_results(Operation& operation, const Call& call, const torch::jit::Stack& arguments);
  void pin(std::size_t entry, bool writes);

  const std::shared_ptr<Recomputation> model_;
  const int block_;
  const c10::DispatchKey key_;
  std::recursive_mutex mutex_;  // operations that run again use its storages
  std::vector<Entry> entries_;
  std::vector<Operation> operations_;
  bool has_ended_ = false;
};

// The owner of a storage of a region.
class Activation final : public StorageOwner, public StorageRecord {
 public:
  Activation(std::shared_ptr<Region> region, std::size_t number)
      : region_(std::move(region)), number_(number) {}

  [[nodiscard]] const Region* region() const { return region_.get(); }
  [[nodiscard]] std::size_t number() const { return number_; }

  void pin(const StorageUse& use) override { region_->pin(number_, use.writes); }
  void written() override {}
  void unpin() noexcept override {}

 private:
  const std::shared_ptr<Region> region_;
  const std::size_t number_;
};

// Where the values of a tensor lie: itself, or what its carrier has. Undefined where there is none.
[[nodiscard]] at::Tensor memory_of(const at::Tensor& tensor, c10::DispatchKey key);

}  // namespace lockstep::dispatch
