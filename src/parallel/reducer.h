// Reducer: how one strategy averages gradients. BackwardStep says when.
#pragma once

#include "parallel/step_status.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>

#include <vector>

namespace lockstep::parallel {

// Everything is called without gradient mode, and by one thread at a time. Every rank posts the
// same calls in every step: those of accept() and post_rest(), or of post_failure(), which are the
// same ones. If a failed backward() ends the handle (StepOptions::abort), there is no
// post_failure().
class Reducer {
 public:
  virtual ~Reducer() = default;

  // Those whose gradients it averages, each once. Parameters below are places in this list.
  [[nodiscard]] virtual const std::vector<NamedParameter>& parameters() const = 0;

  // Local. InvalidArgument names a parameter that is no longer what it was.
  virtual void check_parameters() const = 0;

  // A backward() has given its first gradient: blocks for what a failed one has left under way.
  virtual void begin() = 0;
  // The first one outside no_sync().
  virtual void begin_reduction() = 0;
  // .grad of parameter i is complete. Posts what is complete by that, in one order on all ranks.
  virtual void accept(int i) = 0;
  // The same inside no_sync(): it stays on this rank.
  virtual void keep(int i) = 0;
  // backward() has ended here; after that it is reduced, if `reduces`.
  virtual void end_backward(bool reduces) = 0;
  // For a parameter without a gradient in this backward(): contributes that of an earlier one,
  // inside no_sync(), or zeros and false.
  [[nodiscard]] virtual bool contribute_absent(int i) = 0;
  // The same at the beginning, of one that is known to get none; posts what is complete by that.
  [[nodiscard]] virtual bool contribute_unused(int i) { return contribute_absent(i); }
  // Posts what is left, and what this rank says of the step.
  virtual void post_rest(const StepStatus& own) = 0;
  // Blocks until all ranks have said it; counts them.
  [[nodiscard]] virtual StepStatus wait() = 0;
  // Whether scale_averages() is for it.
  [[nodiscard]] virtual bool scales_averages() const { return false; }
  // Before publish(), for this step: averages are multiplied by it.
  virtual void scale_averages(double /*factor*/) {}
  // For parameters of which each rank keeps a part: whether an operation on this rank has written a
  // whole one since the last compare_writes() or forget_writes().
  [[nodiscard]] virtual bool has_written() { return false; }
  // Collective, when one has on some rank. Mismatch on all ranks, unless all have written the same.
  virtual void compare_writes(Group& /*group*/, const CallOptions& /*call*/) {}
  virtual void forget_writes() {}
  // Averages become .grad of what the optimizer sees, or are added to it. Blocks until they are
  // there.
  virtual void publish(const StepStatus& all) = 0;
  // Called in place of publish() if backward() has failed on another rank, or a gradient is
  // missing: averages are undefined.
  virtual void discard() = 0;

  // After an exception here: posts what the other ranks wait for, with any values.
  virtual void post_failure(const StepStatus& /*own*/) {}
  // An exception has ended backward() here, inside no_sync() too. After post_failure().
  virtual void end_failed_backward() {}

  // Of all parameters; those inside no_sync() too.
  virtual void clear_gradients(bool set_to_none) = 0;

  // From the next step on gradients are expected to come in this order of all parameters, which is
  // rank 0's.
  virtual void adopt_order(const std::vector<int>& order) = 0;
};

}  // namespace lockstep::parallel
