// Reducer: decides, gradient by gradient, what is reduced when.
//
// A step is one averaged backward(). It begins with the first gradient that is ready and ends when
// backward() does:
//   begin      wait for what an earlier, failed step left under way; lay the buckets out again if
//              parameters have changed; check the module: a refusal is an exception like the user's
//   gradient   copy it into its bucket, post the buckets that are complete; always in bucket order,
//              the same on all ranks
//   finish     contribute for parameters that had no part, post the rest, wait, look at the status,
//              publish buffers
//   fail       after an exception: post the rest with the status "failed", so that no rank waits in
//              vain
// After the first step the buckets are laid out in the order in which rank 0's gradients became
// ready.
//
// Invariants: every rank posts the same sequence in every step, whatever happens (all buckets, then
// the buffers; the order once, after the first step that went well on all ranks). Entry points
// (hooks, the watch, pause) lock mutex_; everything that they call holds it.
#pragma once

#include "module/watch.h"
#include "parallel/backward_watch.h"
#include "parallel/data/gradient_buckets.h"
#include "parallel/state_broadcast.h"
#include "parallel/wait_time.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::data_parallel {

class Reducer final : public std::enable_shared_from_this<Reducer> {
 public:
  // `parameters`: those that require a gradient. `watch`: of their module. Local.
  Reducer(Group group, std::vector<NamedParameter> parameters,
          std::shared_ptr<const modules::ModuleWatch> watch, std::vector<at::Tensor> buffers,
          const DataParallelOptions& options);

  // .grad of parameter i has been written. Called by its hook.
  void on_gradient(int i);

  // no_sync(), which nests.
  void pause();
  void resume();

  // Gradients become ordinary tensors.
  void release();

  // Seconds in waits for collectives, of all steps together.
  [[nodiscard]] double seconds_waited() const { return waits_.seconds(); }

 private:
  // A parameter that had no part in a step.
  struct Absent {
    int number = 0;
    at::Tensor values;  // of its .grad, when that lies in a bucket; else undefined
  };
  // What watches the backward() calls of one step: gone with it, so that a call that is torn down
  // later (a graph that the user keeps) does not touch another step.
  using Step = parallel::StepObserver<Reducer>;
  friend Step;

  void on_backward_end(bool nested);
  void on_backward_failed() noexcept;
  void begin();
  void check_step(bool create_graph) const;
  void accept(int i);
  void finish();
  std::vector<Absent> contribute_absent();
  void check_status() const;
  void settle(const std::vector<Absent>& absent);
  void adopt_order_of_root();
  void lay_out(const std::vector<int>& order);
  [[nodiscard]] bool all_ready() const { return observed_.size() == parameters_.size(); }
  [[nodiscard]] const std::string& name(int i) const {
    return parameters_[static_cast<std::size_t>(i)].name;
  }
  [[nodiscard]] std::string describe_missing() const;

  std::mutex mutex_;
  Group group_;
  std::vector<NamedParameter> parameters_;
  std::shared_ptr<const modules::ModuleWatch> watch_;
  DataParallelOptions options_;
  std::vector<int> order_;
  GradientBuckets buckets_;
  std::unique_ptr<parallel::StateBroadcast> buffers_;  // null when they are not broadcast

  parallel::WaitTime waits_;

  int paused_ = 0;
  bool order_known_ = false;    // rank 0's order has been adopted
  std::vector<bool> used_;      // had a gradient since the last finished step, paused or not
  std::shared_ptr<Step> step_;  // null: no step is under way
  std::vector<bool> ready_;
  std::vector<int> observed_;  // the ready ones, in order
};

}  // namespace lockstep::data_parallel
