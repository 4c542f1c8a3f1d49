// UnitGradients: the gradients of one unit, from the module's .grad to the averages in its slices.
//
//   accept(i) for each parameter, or skip(i)   their places in one flat buffer
//   post()                                     reduce_scatter: my range becomes the average
//   forward()                                  on two axes: and the sum over the replicas
//   publish()                                  .grad of the slices: set, or added to
//
// Level optimizer keeps the buffer, and averages stay in it; the other levels use one from the pool
// and keep the averages beside the shard.
//
// Averages in fewer bits than the parameters have stay so, and are widened where they are used
// (deferred_gradient.h): by lockstep::optim a few at a time.
//
// With reduce_in_step the buffer is this rank's row in memory of all ranks: post() has nothing to
// do, and publish() leaves averages that are computed where they are used (deferred_gradient.h).
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "parallel/sharded/absent_gradients.h"
#include "parallel/sharded/buffer_pool.h"
#include "parallel/sharded/deferred_gradient.h"
#include "parallel/sharded/unit.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::sharded {

class UnitGradients {
 public:
  // `replicas`: a group of one rank but on two axes. The handle keeps both groups. With
  // reduce_in_step collective.
  UnitGradients(const Unit& unit, Group& shards, Group& replicas, std::shared_ptr<BufferPool> pool,
                std::shared_ptr<DeferredGradients> deferred, std::function<void()> before_refusal);

  // Parameter i's .grad goes to its place, and is absent then.
  void accept(int i);
  // It has none: zeros.
  void skip(int i);
  // .grad is not to be reduced yet. At level optimizer it becomes its place, so that no second copy
  // of all gradients is there.
  void keep(int i);

  void post();
  void forward();
  // Instead of both, when backward() has failed here: takes part with any values, which lie in
  // `scratch` where there are none of this unit yet. Does not wait.
  void post_anything(at::Tensor& scratch);
  // The second half of it, of a unit that is posted already.
  void forward_anything();
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
  [[nodiscard]] bool keeps_buffer() const {
    return unit_.settings().level == ShardLevel::optimizer || reduces_in_step();
  }
  [[nodiscard]] bool reduces_in_step() const { return unit_.settings().reduce_in_step; }
  void make_rows();
  [[nodiscard]] bool averages_stay() const;
  [[nodiscard]] bool averages_are_narrow() const;
  [[nodiscard]] at::Tensor make_averages() const;
  [[nodiscard]] std::shared_ptr<DeferredGradient> deferred_average();
  void publish_slice(int i);
  [[nodiscard]] at::Tensor average_of(int i);
  [[nodiscard]] at::Tensor place(int i) const;
  [[nodiscard]] bool in_place(int i) const;
  [[nodiscard]] at::Tensor own_part() const;
  void wait();
  void begin();
  void settle();
  void drop_averages();
  void finish();
  void move_out();
  void clear_padding();
  [[nodiscard]] at::Tensor home_of(int i);
  [[nodiscard]] bool is_at_home(const at::Tensor& gradient) const {
    return home_storage_ && home_storage_->holds(gradient);
  }
  void open_home();

  const Unit& unit_;
  Group& shards_;
  Group& replicas_;
  std::shared_ptr<BufferPool> pool_;
  std::shared_ptr<DeferredGradients> deferred_;
  std::string tag_;
  c10::ScalarType dtype_;  // of the sum
  AbsentGradients absent_;
  at::Tensor rows_;                           // with reduce_in_step: one a rank
  std::shared_ptr<DeferredGradient> latest_;  // null: averages are in memory as they are used
  at::Tensor flat_;                           // undefined while there is none
  at::Tensor averages_;                       // of the shard; undefined where they are in flat_
  std::optional<dispatch::LazyStorage> home_storage_;  // on the memory of averages that stay
  bool filling_ = false;  // flat_ holds gradients that publish() has not seen
  Work work_;
  Work forwarded_;  // post_anything()'s
};

}  // namespace lockstep::sharded
