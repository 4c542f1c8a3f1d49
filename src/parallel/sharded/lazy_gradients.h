// LazyGradient: the average of a unit's gradients over the ranks, in this rank's range,
// computed where it is used (ShardOptions::reduce_in_step).
//
// Each rank's gradients lie in its row of memory that all ranks of the host share. An optimizer of
// ours reads the average piece by piece, summed from the rows in the group's fixed order: bit for
// bit what reduce_scatter() gives. For every other use, the first one computes all of it.
//
// Averages that are kept in fewer bits than the optimizer's (ShardOptions::reduce_dtype) are one
// too, of a single row: it is widened where it is used.
//
// A peer's row is read from the end of the backward() that filled it until this rank takes part in
// the next gather, or in the meeting that UnitReducer has instead: no rank writes to its row
// before all ranks have. settle() is called then.
//
// Thread-safe, but settle().
#pragma once

#include "base/mutex.h"
#include "dispatch/lazy_storage.h"
#include "parallel/sharded/unit.h"

#include <lockstep/dispatch/part.h>
#include <lockstep/layout/tensor_slice.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::sharded {

class LazyGradient final : public dispatch::ValueSource {
 public:
  // `rows`: one per rank, or a single one, which is then the average. Slices are of `dtype`, and
  // are the parts of the list.
  static std::shared_ptr<LazyGradient> make(at::Tensor rows, layout::Range range,
                                            c10::ScalarType dtype, c10::DispatchKey key,
                                            dispatch::PartList parts);

  // A part of the range, from its element `offset` on.
  [[nodiscard]] at::Tensor slice(std::int64_t offset, std::int64_t length) const;
  // Computes all of it, if a slice is still in use: the rows may then be written again.
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
  // From this call on, this rank does not read rows of peers.
  void settle();
  // Returns true if some rank may be reading rows. Equal on all ranks: the result depends only on
  // the order of backward() and gathers.
  [[nodiscard]] bool are_open();

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<LazyGradient>> gradients_ LOCKSTEP_GUARDED_BY(mutex_);
  bool open_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// AbsentGradients: tensors in .grad where there is no gradient. Their use as a gradient is an
// InvalidArgument that says where the gradients are:
//
//   of the module's parameters   always, but in backward() and after one inside no_sync(): an
//                                optimizer, clip_grad_norm_() or zero_grad() that is used on the
//                                module instead of the handle
//   of the slices                from the handle's zero_grad(), or from a backward() inside
//                                no_sync(), to the next reduced backward(): a step without one
//
// They are tensors of a parameter's sizes in a lazy storage that never has memory. A hook takes one
// of the module's away before backward() accumulates there.
//
// Not thread-safe: BackwardStep holds its mutex.

// A gradient that has values.
[[nodiscard]] bool has_gradient(const at::Tensor& tensor);

class AbsentGradients {
 public:
  // Makes the gradients of the module of `unit` absent. The unit must train and outlive this
  // object.
  explicit AbsentGradients(const Unit& unit);
  // Sets these gradients to undefined tensors.
  ~AbsentGradients();
  AbsentGradients(const AbsentGradients&) = delete;
  AbsentGradients& operator=(const AbsentGradients&) = delete;

  // .grad of the module's parameter i.
  void leave_in_module(int i);
  // .grad of slice i, unless it has one.
  void leave_in_slice(int i);

 private:
  class Refusal;
  struct One {
    std::shared_ptr<Refusal> owner;
    at::Tensor tensor;
  };
  [[nodiscard]] One made(const at::Tensor& like, bool of_module, const std::string& text) const;

  const Unit& unit_;
  std::vector<One> of_module_;
  std::vector<One> of_slices_;
  std::vector<unsigned> hooks_;
};

}  // namespace lockstep::sharded
