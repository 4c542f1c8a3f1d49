// Averages: where the averages of a unit's gradients lie in this rank's range, as .grad of the
// slices:
//
//   AveragesInBuffer    where the sum over ranks left them: level optimizer
//   AveragesBeside      in memory beside the shard: levels gradients and full
//   OffloadedAverages   the same, in the memory of the Offload
//   NarrowAverages      in fewer bits than the parameters have, widened where they are used
//   AveragesOfRows      in no memory: computed where they are used (reduce_in_step)
//
// The last two are LazyGradients: lockstep::optim reads a few elements at a time.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "parallel/sharded/gradient_buffer.h"
#include "parallel/sharded/lazy_gradient.h"
#include "parallel/sharded/unit.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace lockstep::sharded {

class Averages {
 public:
  // Of gradients in `buffer`. It and the unit outlive this object. `deferred`: those of the handle,
  // with reduce_in_step.
  static std::unique_ptr<Averages> make(const Unit& unit, const GradientBuffer& buffer,
                                        std::shared_ptr<LazyGradients> deferred);
  Averages(const Unit& unit, const GradientBuffer& buffer) : unit_(unit), buffer_(buffer) {}
  virtual ~Averages() = default;

  // Around the calls of place() and values() for one sum over the ranks, which is complete.
  virtual void begin() {}
  virtual void end() {}
  // What becomes .grad of slice i.
  [[nodiscard]] virtual at::Tensor place(int i) = 0;
  // What is added to a .grad that slice i has.
  [[nodiscard]] virtual at::Tensor values(int i);

  // The buffer is about to be filled again: what is still used of earlier averages leaves it.
  virtual void leave_buffer() {}
  // Memory that is needed no more is given back.
  virtual void drop() {}

  // Of memory beside the buffer that is this process's own.
  [[nodiscard]] virtual std::int64_t bytes() const { return 0; }
  // Whether a .grad lies in the buffer or that memory.
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

}  // namespace lockstep::sharded
