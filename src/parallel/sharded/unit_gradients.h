// UnitGradients: moves the gradients of one unit from the module's .grad to the averages in its
// slices.
//
//   accept(i) or skip(i) for each parameter    moves gradients to one flat buffer
//   post()                                     reduce_scatter: averages into this rank's range
//   forward()                                  with replicas: sums, or averages, over them
//   publish()                                  sets, or adds to, .grad of the slices
//
// A GradientBuffer determines where the gradients are stored, and Averages where the averages are.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "parallel/sharded/lazy_gradients.h"
#include "parallel/sharded/unit.h"
#include "parallel/sharded/unit_storage.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::sharded {

// GradientBuffer: the flat storage of all gradients of one unit until they are averaged. Levels
// gradients and full: a buffer of the pool, from the first gradient to publish(). Level optimizer:
// a permanent buffer. reduce_in_step: this rank's row in memory of all ranks.
//
// Not thread-safe: BackwardStep holds its mutex.
class GradientBuffer {
 public:
  // The unit, the pool and the group must outlive it. Collective only with reduce_in_step.
  GradientBuffer(const Unit& unit, Group& shards, BufferPool& pool);

  // The buffer, in the dtype of the sum over ranks. Undefined while it is not allocated.
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }
  // Returns this rank's range of the buffer.
  [[nodiscard]] at::Tensor own_part() const;
  // Returns all ranks' buffers, one per row; undefined if they are not in this rank's memory.
  [[nodiscard]] const at::Tensor& rows() const { return rows_; }

  // Returns true if the buffer is kept between steps.
  [[nodiscard]] bool stays() const { return stays_; }
  // Allocates the buffer. Padding between gradients is zero.
  void take();
  // Releases the buffer, unless it stays.
  void give_back();

  // Posts the sum, or average, over the ranks; the result is in own_part(). Does nothing if there
  // are rows(), which are summed where an average is used.
  [[nodiscard]] Work reduce(Op op, const CallOptions& call);

 private:
  const Unit& unit_;
  Group& shards_;
  BufferPool& pool_;
  c10::ScalarType dtype_;
  bool stays_;
  at::Tensor rows_, flat_;
};

// Averages: the storage of the averaged gradients in this rank's range, as .grad of the slices:
//
//   StoredAverages   level optimizer: where the sum over ranks left them; levels gradients and
//                    full: in memory beside the shard, or of the Offload
//   LazyAverages     computed on use by LazyGradients, of which lockstep::optim reads a few
//                    elements at a time: averages in fewer bits than the parameters, and those of
//                    reduce_in_step
//
// As in LibTorch, an average that the program holds (`auto gradient = slice.grad()`) keeps its
// values after zero_grad(): later averages get other memory.
//
// Not thread-safe: BackwardStep holds its mutex.
class Averages {
 public:
  // Makes the averages of gradients in `buffer`. The buffer and the unit must outlive this object.
  // `deferred`: the handle's lazy gradients, with reduce_in_step.
  static std::unique_ptr<Averages> make(const Unit& unit, const GradientBuffer& buffer,
                                        std::shared_ptr<LazyGradients> deferred);
  Averages(const Unit& unit, const GradientBuffer& buffer) : unit_(unit), buffer_(buffer) {}
  virtual ~Averages() = default;

  // Called around the calls of place() and values() for one completed sum over the ranks.
  virtual void begin() {}
  virtual void end() {}
  // Returns the tensor that becomes .grad of slice i.
  [[nodiscard]] virtual at::Tensor place(int i) = 0;
  // Returns the tensor that is added to an existing .grad of slice i.
  [[nodiscard]] virtual at::Tensor values(int i) = 0;

  // Call before the buffer is filled again: moves earlier averages that are still used out of it.
  // Their tensors stay the same.
  virtual void leave_buffer() {}
  // Releases memory that is no longer needed.
  virtual void drop() {}

  // Returns the bytes of private memory beside the buffer.
  [[nodiscard]] virtual std::int64_t bytes() const { return 0; }
  // Returns true if a .grad is in the buffer or in that memory.
  [[nodiscard]] virtual bool hold(const at::Tensor& /*gradient*/) const { return false; }

 protected:
  [[nodiscard]] const layout::FlatSlice& slice(int i) const {
    return unit_.owned()[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] at::Tensor part_of(const at::Tensor& range, int i) const {
    return range.narrow(0, slice(i).offset, slice(i).of_tensor.length());
  }

  const Unit& unit_;
  const GradientBuffer& buffer_;
};

class UnitGradients {
 public:
  // `replicas`: the ranks with the same shard. The handle owns both groups. Collective only with
  // reduce_in_step.
  UnitGradients(const Unit& unit, Group& shards, Group& replicas, std::shared_ptr<BufferPool> pool,
                std::shared_ptr<LazyGradients> deferred);

  // Moves parameter i's .grad to its place; .grad is then undefined.
  void accept(int i);
  // Parameter i has no gradient: fills its place with zeros.
  void skip(int i);
  // Returns true if gradients keep their places between steps.
  [[nodiscard]] bool keeps_buffer() const { return buffer_.stays(); }
  // Keeps a .grad that must not be reduced yet. If the buffer stays between steps, .grad becomes
  // its place in the buffer, so that there is no second copy of the gradients. If the buffer has
  // more bits than the gradient, .grad gets the buffer's dtype: the next backward() adds to it.
  void keep(int i);
  // Drops what keep(i) has kept, if an optimizer's own zero_grad() has cleared the slice since.
  void drop_if_cleared(int i) { absent_.drop_if_cleared(i); }

  void post();
  void forward();
  // Blocks until the averages are complete. Slices of `unused` parameters are not changed; one flag
  // per parameter, or an empty vector.
  void publish(const std::vector<bool>& unused = {});
  // Blocks for operations in flight, and drops their results.
  void discard();

  // Clears the gradients in the module and in the slices.
  void clear(bool set_to_none);
  // Call after a backward() inside no_sync(): there is no gradient for a step yet.
  void end_keeping();

  // Releases memory that no gradient needs now.
  void free_buffers();

  // Returns the bytes that stay after publish(), and the whole gradients that keep() has left in
  // the module.
  [[nodiscard]] std::int64_t kept_bytes() const;

 private:
  // With replicas, the sum over all ranks is divided once, except in float16: the sum over the
  // shards could overflow, although the average does not.
  [[nodiscard]] bool divides_at_the_end() const {
    return replicas_.size() > 1 && buffer_.dtype() != at::kHalf;
  }
  [[nodiscard]] Op op() const { return divides_at_the_end() ? Op::sum : Op::average; }
  [[nodiscard]] CallOptions call() const {
    return {.tag = tag_, .timeout = unit_.settings().options.timeout};
  }
  [[nodiscard]] at::Tensor place(int i) const;
  [[nodiscard]] bool in_place(int i) const;
  void move_to_place(int i);
  void wait();
  void begin();

  const Unit& unit_;
  Group& shards_;
  Group& replicas_;
  std::shared_ptr<BufferPool> pool_;
  std::string tag_;
  AbsentGradients absent_;
  GradientBuffer buffer_;
  std::unique_ptr<Averages> averages_;
  bool filling_ = false;  // the buffer holds gradients that were not published
  Work work_;
};

}  // namespace lockstep::sharded
