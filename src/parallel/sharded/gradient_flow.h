// GradientFlow: decides, gradient by gradient, what is reduced when.
//
// A step is one reduced backward(). It begins with the first gradient that is ready and ends when
// backward() does:
//   begin      check that the parameters are still where they were put, and the module's; a refusal
//              is an exception like the user's
//   gradient   goes to its place; units that are complete are posted, always in one order, the same
//              on all ranks, and at levels gradients and full few at a time
//   finish     contribute for parameters that had no part, post the rest and the status, wait,
//              publish averages, publish buffers
//   fail       after an exception: post the rest with any values and the status "failed", so that
//              no rank waits without an answer; it is waited for when the next step begins
// The status counts, for each parameter, the ranks that had no gradient for it, and the ranks with
// an exception. After the first step units are posted in the order in which rank 0's became
// complete.
//
// Inside no_sync() gradients are left where they are, and only the end of backward() matters.
//
// Thread-safe: entry points (hooks, the watch, pause) lock mutex_; everything that they call holds
// it.
#pragma once

#include "module/watch.h"
#include "parallel/backward_watch.h"
#include "parallel/sharded/residency.h"
#include "parallel/sharded/unit_gradients.h"
#include "parallel/state_broadcast.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/sharded/options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::sharded {

// The groups of one handle. Each carries calls of one kind, whose order is the same on all ranks
// even where the kinds interleave differently.
struct Groups {
  Group whole;     // status, buffers, checks: all ranks
  Group gather;    // units' values
  Group reduce;    // units' gradients
  Group replicas;  // on two axes: those that hold the same shard
};

class GradientFlow final : public std::enable_shared_from_this<GradientFlow> {
 public:
  GradientFlow(Groups groups, Residency& residency, std::shared_ptr<BufferPool> pool,
               std::vector<at::Tensor> buffers, std::shared_ptr<const modules::ModuleWatch> watch,
               const ShardOptions& options);

  // The parameters that need a hook; on_gradient() takes their places in this list.
  [[nodiscard]] std::vector<at::Tensor> hooked() const;
  void on_gradient(int i);

  void pause();
  void resume();

  // InvalidArgument names a parameter that is no longer where fully_shard() put it, or that was not
  // there then.
  void check_parameters() const;

  // Gradients and what stands in their places go: the handle has nothing to do with them any more.
  void end();
  // Local.
  void clear_gradients(bool set_to_none);
  // Whether a slice has one.
  [[nodiscard]] bool has_gradients();

  void free_buffers();
  // Bytes of gradients that are there between backward() and the next step.
  [[nodiscard]] std::int64_t kept_bytes();

 private:
  using Step = parallel::StepObserver<GradientFlow>;
  friend Step;
  struct Place {
    int unit = 0;
    int number = 0;  // in the unit
  };

  void on_backward_end(bool nested);
  void on_backward_failed() noexcept;
  void begin();
  void check_step(bool create_graph) const;
  void close_rows();
  void accept(int i);
  void post_ready();
  void publish_oldest();
  void discard_all();
  void finish();
  void contribute_absent();
  void post_status();
  void wait_for_status();
  void check_status(bool order_was_known);
  void tell_failure();
  void forward_all();
  void publish_all();
  void adopt_order_of_root();
  [[nodiscard]] std::string describe_missing() const;
  [[nodiscard]] std::vector<bool> unused_in(int unit) const;
  [[nodiscard]] const Unit& unit(int number) const {
    return *residency_.units()[static_cast<std::size_t>(number)];
  }
  [[nodiscard]] const std::string& name(int i) const;

  std::mutex mutex_;
  Groups groups_;
  Residency& residency_;
  ShardOptions options_;
  std::shared_ptr<DeferredGradients> deferred_;            // null: reduced in backward()
  std::vector<std::unique_ptr<UnitGradients>> gradients_;  // one a unit; null where none trains
  std::vector<Place> places_;                              // of hooked parameters
  std::vector<int> order_;                                 // of units that train
  bool order_known_ = false;
  std::unique_ptr<parallel::StateBroadcast> buffers_;  // null when they are not broadcast
  int paused_ = 0;

  std::shared_ptr<Step> step_;         // null: no backward() is under way
  bool reduces_ = false;               // it is not one inside no_sync()
  std::vector<bool> ready_;            // by hooked parameter
  std::vector<int> awaited_;           // by unit: parameters that are not ready
  std::vector<int> complete_;          // units, in the order in which they became so
  std::size_t posted_ = 0;             // units of order_
  std::deque<int> in_flight_;          // posted and not published
  std::vector<std::int32_t> missing_;  // by hooked parameter: ranks without a gradient; and failed
  at::Tensor status_;                  // the same, on its way
  Work status_work_;
  std::shared_ptr<const modules::ModuleWatch> watch_;
};

}  // namespace lockstep::sharded
