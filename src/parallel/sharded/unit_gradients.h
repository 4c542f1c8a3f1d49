// UnitGradients: the gradients of one unit, from the module's .grad to the averages in its slices.
//
//   accept(i) for each parameter, or skip(i)   their places in one flat buffer
//   post()                                     reduce_scatter: this rank's range is the average
//   forward()                                  with replicas: and the sum over them
//   publish()                                  .grad of the slices: set, or added to
//
// A GradientBuffer decides where the gradients lie, and Averages where the averages lie.
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

// GradientBuffer: where all gradients of one unit lie, flat, until they are averaged:
//
//   PooledBuffer       a buffer of the pool, from the first gradient to publish(): levels gradients
//                      and full
//   PersistentBuffer   one that stays: level optimizer
//   RowBuffer          this rank's row in memory of all ranks: reduce_in_step
//
// Not thread-safe: BackwardStep holds its mutex.
class GradientBuffer {
 public:
  // The unit, the pool and the group outlive it. Local, but collective with reduce_in_step.
  static std::unique_ptr<GradientBuffer> make(const Unit& unit, Group& shards, BufferPool& pool);
  virtual ~GradientBuffer() = default;

  // In the dtype of the sum over ranks. Undefined while there is none.
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  [[nodiscard]] c10::ScalarType dtype() const { return dtype_; }
  // This rank's range of it.
  [[nodiscard]] at::Tensor own_part() const;
  // All ranks' buffers, a row each; undefined where they are no memory of this rank.
  [[nodiscard]] virtual at::Tensor rows() const { return {}; }

  // Whether it is there between steps.
  [[nodiscard]] virtual bool stays() const = 0;
  // It is there from now on. What is no gradient's place is zeros.
  void take();
  // It is not used any more.
  virtual void give_back() {}

  // Posts the sum, or average, over the ranks: own_part() has it then, where there are no rows().
  [[nodiscard]] virtual Work reduce(Op op, const CallOptions& call);
  // The same of any memory, as large as flat().
  [[nodiscard]] Work reduce(const at::Tensor& flat, Op op, const CallOptions& call);

 protected:
  GradientBuffer(const Unit& unit, Group& shards);
  [[nodiscard]] const Unit& unit() const { return unit_; }
  [[nodiscard]] Group& shards() const { return shards_; }
  void clear_padding();

  at::Tensor flat_;

 private:
  [[nodiscard]] virtual at::Tensor made() = 0;

  const Unit& unit_;
  Group& shards_;
  c10::ScalarType dtype_;
};

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

class UnitGradients {
 public:
  // `replicas`: the ranks that have the same shard. The handle keeps both groups. With
  // reduce_in_step collective.
  UnitGradients(const Unit& unit, Group& shards, Group& replicas, std::shared_ptr<BufferPool> pool,
                std::shared_ptr<LazyGradients> deferred);

  // Parameter i's .grad goes to its place, and is absent then.
  void accept(int i);
  // It has none: zeros.
  void skip(int i);
  // Whether gradients have their places between steps, too.
  [[nodiscard]] bool keeps_buffer() const { return buffer_->stays(); }
  // .grad is not to be reduced yet. Where the buffer stays it becomes its place, so that no second
  // copy of all gradients is there.
  void keep(int i);

  void post();
  void forward();
  // Blocks until the averages are there. Slices of parameters that are `unused` stay as they are;
  // one flag a parameter, or none at all.
  void publish(const std::vector<bool>& unused = {});
  // Blocks for what is under way, and forgets it.
  void discard();

  // What was there is not, in the module and in the slices.
  void clear(bool set_to_none);
  // A backward() inside no_sync() has ended: there is nothing yet for a step.
  void end_keeping();

  // What no gradient needs now.
  void free_buffers();

  // Bytes that stay after publish(), and whole gradients that keep() has left in the module.
  [[nodiscard]] std::int64_t kept_bytes() const;

 private:
  void publish_slice(int i);
  [[nodiscard]] Op op() const { return replicas_.size() == 1 ? Op::average : Op::sum; }
  [[nodiscard]] CallOptions call() const {
    return {.tag = tag_, .timeout = unit_.settings().timeout};
  }
  [[nodiscard]] at::Tensor place(int i) const;
  [[nodiscard]] bool in_place(int i) const;
  void wait();
  void begin();
  void finish();

  const Unit& unit_;
  Group& shards_;
  Group& replicas_;
  std::shared_ptr<BufferPool> pool_;
  std::string tag_;
  AbsentGradients absent_;
  std::unique_ptr<GradientBuffer> buffer_;
  std::unique_ptr<Averages> averages_;
  bool filling_ = false;  // the buffer holds gradients that publish() has not seen
  Work work_;
};

}  // namespace lockstep::sharded
