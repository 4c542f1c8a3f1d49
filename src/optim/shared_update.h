// SharedUpdate: ranks of one host that have the same parameters and gradients update each parameter
// together. Each rank updates its part of it, and all_gather gives that to the others. What the
// optimizer keeps of such a parameter lies once, in memory that all of them map: a rank writes its
// part and sees all of it.
//
// A step of a group of parameters:
//   barrier      its tag says what the ranks are about to do, so that different learning rates, or
//                other gradients that are there, are a Mismatch; nobody looks at the state now
//   parts        parameter by parameter: update the own one, post the all_gather
//   wait         then every rank has done all of its parts, and has all of the others'
//
// Only what is large is divided: below `least_bytes` a call costs more than the update. Nor is what
// the shared memory has no room for, which all ranks learn together: each rank updates all of it.
//
// Not thread-safe, as step() is not.
#pragma once

#include "optim/update_entry.h"

#include <lockstep/comm/group.h>
#include <lockstep/optim/state_memory.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace lockstep::optim {

// Memory that all ranks map. The group's first rank alone writes what is there at the beginning.
// A write there by other code than the optimizer would be applied once for each rank: is_written()
// detects it.
class SharedState final : public StateMemory {
 public:
  explicit SharedState(Group group) : group_(std::move(group)) {}

  // Collective. They are zeros after the next barrier.
  [[nodiscard]] at::Tensor zeros(std::int64_t count, at::ScalarType dtype) override;
  [[nodiscard]] bool holds(const at::Tensor& tensor) const override {
    return block_of(tensor) != nullptr;
  }
  [[nodiscard]] bool fills() const override { return group_.is_root(); }
  void will_use(const at::Tensor&) noexcept override {}
  void has_used(const at::Tensor&) noexcept override {}

  // Whether LibTorch's operations have written to what lies there, since accept_writes().
  [[nodiscard]] bool is_written(const at::Tensor& tensor) const;
  void accept_writes(const at::Tensor& tensor);

 private:
  // Its tensors count their versions together.
  struct Block {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::int64_t version = 0;
  };
  [[nodiscard]] const Block* block_of(const at::Tensor& tensor) const;

  Group group_;
  std::vector<Block> blocks_;
};

class SharedUpdate {
 public:
  static constexpr std::size_t least_bytes = std::size_t{64} << 10;

  // Local. `parameters` are equal on all ranks of the group, which share memory, and so are their
  // gradients, unless `check_gradients` throws. What is not among them each rank updates.
  SharedUpdate(Group group, std::vector<at::Tensor> parameters,
               std::function<void()> check_gradients);

  // Local. Whether ranks divide it.
  [[nodiscard]] bool divides(const UpdateEntry& entry) const;
  // Local, of one that ranks do not divide, for it may have been divided before: a parameter that
  // is in 16 bits or in float64 now, say. What lies in shared memory becomes each rank's own, since
  // each updates all of it.
  void keep_own(const UpdateEntry& entry, const GroupStep& step) const;
  // Collective: brings the state of entries that ranks divide to where it is shared. False where
  // that has no room for it: then nothing was changed, and ranks do not divide these any more.
  [[nodiscard]] bool prepare(std::vector<UpdateEntry>& entries, const GroupStep& step);

  // Collective, of the same entries. `rule` is what ranks must agree on beside them; `update` is
  // called for some of them at a time.
  using Update = std::function<void(std::vector<UpdateEntry>&)>;
  void run(std::vector<UpdateEntry>& entries, const GroupStep& step, const std::string& rule,
           const Update& update);

 private:
  void check_not_written(const UpdateEntry& entry, const GroupStep& step) const;
  void give_up(const UpdateEntry& entry);
  void take_from_shared(const UpdateEntry& entry) const;
  [[nodiscard]] bool has_room(const std::vector<UpdateEntry>& entries, StateFormat format);
  void meet(const std::vector<UpdateEntry>& entries, const GroupStep& step,
            const std::string& rule);
  [[nodiscard]] Work publish(const UpdateEntry& entry);

  Group group_;
  std::vector<at::Tensor> parameters_;
  std::unordered_set<const c10::TensorImpl*> known_;  // those that ranks divide
  std::function<void()> check_gradients_;
  std::shared_ptr<SharedState> state_;
};

}  // namespace lockstep::optim
