// UnitGradients: the gradients of one unit, from the module's .grad to the averages in its slices.
//
//   accept(i) for each parameter, or skip(i)   their places in one flat buffer
//   post()                                     reduce_scatter: this rank's range is the average
//   forward()                                  with replicas: and the sum over them
//   publish()                                  .grad of the slices: set, or added to
//
// Where gradients lie is their GradientBuffer's matter, and where averages lie their Averages'.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "parallel/sharded/absent_gradients.h"
#include "parallel/sharded/averages.h"
#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/gradient_buffer.h"
#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::sharded {

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
