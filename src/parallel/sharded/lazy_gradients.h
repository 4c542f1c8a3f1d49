// LazyGradient: the average of a unit's gradients over the ranks, in this rank's range,
// computed where it is used (ShardOptions::reduce_in_step).
//
// Each rank's gradients lie in its row of memory that all ranks of the host share.
// lockstep::optim's optimizers read the average piece by piece, summed from the rows in the group's
// fixed order: bit-identical to reduce_scatter(). The first use of any other kind computes the
// whole average.
//
// An average that is kept in fewer bits than the optimizer's (ShardOptions::reduce_dtype) is also a
// LazyGradient, with a single row, which is widened on use.
//
// After a backward() has filled the rows, this rank may read a peer's row until it enters the next
// gather, or the barrier that UnitReducer uses instead; it calls settle() before it enters. No rank
// writes to its row before all ranks have entered.
//
// Thread-safe, except settle().
#pragma once

#include "base/mutex.h"
#include "dispatch/lazy_storage.h"
#include "parallel/sharded/unit.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::sharded {

class LazyGradient final : public dispatch::ValueSource {
 public:
  // `rows`: one per rank, or a single row, which is the average. Slices have `dtype`, and are the
  // parts of the list.
  static std::shared_ptr<LazyGradient> make(at::Tensor rows, layout::Range range,
                                            c10::ScalarType dtype, c10::DispatchKey key,
                                            dispatch::PartList parts);

  // Returns a part of the range that begins at its element `offset`.
  [[nodiscard]] at::Tensor slice(std::int64_t offset, std::int64_t length) const;
  // Computes the whole average if a slice is still in use; the rows may be written afterwards.
  void settle();

  void pin(const dispatch::StorageUse&) override { compute(); }
  void written() override {}
  void unpin() noexcept override {}
  void read(std::int64_t begin, std::int64_t count, void* to) const override;
  [[nodiscard]] std::int64_t bytes_an_element() const override;

 private:
  LazyGradient(at::Tensor rows, layout::Range range, c10::ScalarType dtype);
  void compute();
  void average(std::int64_t begin, std::int64_t count, void* to) const;

  at::Tensor rows_;
  layout::Range range_;
  c10::ScalarType dtype_;
  std::vector<const std::byte*> inputs_;  // the range in each row
  std::unique_ptr<dispatch::LazyStorage> storage_;
  Mutex mutex_;
  bool computed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// The lazy gradients of one handle. Thread-safe.
class LazyGradients {
 public:
  void add(std::shared_ptr<LazyGradient> gradient);
  // After this call, this rank does not read rows of peers.
  void settle();
  // Returns true if some rank may be reading rows. Equal on all ranks: the result depends only on
  // the order of backward() and gathers.
  [[nodiscard]] bool are_open();

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<LazyGradient>> gradients_ LOCKSTEP_GUARDED_BY(mutex_);
  bool open_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// AbsentGradients: placeholders in .grad where there is no gradient. Using one as a gradient throws
// an InvalidArgument that says where the gradients are:
//
//   module's parameters   always, except during backward() and after a backward() inside no_sync().
//                         Detects an optimizer, clip_grad_norm_() or zero_grad() that is used on
//                         the module instead of the handle
//   slices                from the handle's zero_grad(), or from a backward() inside no_sync(), to
//                         the next reduced backward(). Detects a step without a reduced backward()
//
// They are tensors of a parameter's sizes in a lazy storage that never has memory. A hook removes
// the placeholder of a module's parameter before backward() accumulates into it.
//
// An optimizer holds the slices, so its own zero_grad() cannot reach a gradient that a backward()
// inside no_sync() has left in the module. So this object watches the gradient of the slice, or its
// placeholder: if that is reset or zeroed, the gradient in the module is dropped before its next
// use. While a gradient is kept, an earlier average in the slice is not the gradient of a step, so
// its other uses throw InvalidArgument, too.
//
// BackwardStep holds its mutex during all calls, except that the hook runs in the engine's threads.

class AbsentGradients {
 public:
  // Sets placeholders as the gradients of the unit's parameters in the module. The unit must train
  // and outlive this object.
  explicit AbsentGradients(const Unit& unit);
  // Replaces these placeholders by undefined tensors.
  ~AbsentGradients();
  AbsentGradients(const AbsentGradients&) = delete;
  AbsentGradients& operator=(const AbsentGradients&) = delete;

  // Sets .grad of the module's parameter i to a placeholder.
  void leave_in_module(int i);
  // Sets .grad of slice i to a placeholder, unless it has a gradient.
  void leave_in_slice(int i);

  // Call when a gradient of parameter i stays in the module. Until it is dropped or taken, a use of
  // the gradient of slice i throws.
  void keep(int i);
  // Drops this gradient if that of slice i was reset or zeroed since keep().
  void drop_if_cleared(int i);
  // Call when the module's gradient of parameter i was cleared or taken.
  void forget(int i);

 private:
  class Refusal;
  class Watch;
  struct One {
    std::shared_ptr<Refusal> owner;
    at::Tensor tensor;
  };
  [[nodiscard]] One made(const at::Tensor& like, bool of_module, const std::string& text) const;
  // A gradient in the module that was not reduced, with ZeroWatch::zeros() at that time.
  struct Kept {
    std::uint64_t zeros_of_placeholder = 0;
    std::uint64_t zeros_of_gradient = 0;
  };
  [[nodiscard]] bool is_cleared(std::size_t i) const LOCKSTEP_REQUIRES(mutex_);
  void put_in_module(std::size_t i) LOCKSTEP_REQUIRES(mutex_);
  void set_kept(std::size_t i, const std::optional<Kept>& kept) LOCKSTEP_REQUIRES(mutex_);
  void watch_slice(std::size_t i) LOCKSTEP_REQUIRES(mutex_);

  const Unit& unit_;
  std::vector<One> of_module_;
  std::vector<One> of_slices_;
  Mutex mutex_;
  // The owners of the slices' gradients, once keep() has seen them.
  std::vector<std::shared_ptr<Watch>> watches_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::optional<Kept>> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<unsigned> hooks_;
};

}  // namespace lockstep::sharded
