// GradientBuckets: the gradients of a list of parameters in the buckets that are reduced, and the
// works of the step that is under way.
//
// Beside the gradients, the last bucket carries the status of this rank (backward_step.h). Averaged
// like everything else, it tells every rank how many ranks had no gradient for a parameter, or an
// exception, for no message of its own. So the last bucket is posted when backward() has ended. In
// a group of one rank nothing is laid out or copied; only the status remains.
//
// A gradient that the plan lets alone is reduced where autograd has put it, if it has that memory
// to itself; else it is copied into a bucket, which is made then. Where that is the last bucket it
// is posted as soon as it is ready, and the status is a call of its own.
//
// With a communication hook, buckets go through it, on one rank too, and the status is a call of
// its own behind the first calls of all buckets. Later steps of the hook run when all ranks' status
// is known to be good, so that a rank whose backward() has failed need not take part in them.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include "layout/flat_layout.h"
#include "parallel/backward_step.h"
#include "parallel/bucket.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/parallel/data/communication_hook.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::data_parallel {

class GradientBuckets {
 public:
  // Local. `order`: that in which gradients are expected to become ready. The group outlives this
  // object.
  GradientBuckets(Group& group, std::vector<NamedParameter> parameters, std::span<const int> order,
                  layout::PlanOptions limits, std::optional<Duration> timeout,
                  std::shared_ptr<CommunicationHook> hook = nullptr);

  // False when a parameter has other sizes, dtype or device than at the construction.
  [[nodiscard]] bool fit() const;
  [[nodiscard]] const layout::BucketPlan& plan() const { return plan_; }

  // Writes into the place of parameter i what its .grad holds, or zeros; leaves .grad alone.
  void fill(int i);
  // Points .grad of i at its place.
  void adopt(int i);
  // Both, but for a gradient that is reduced where it is.
  void take(int i);
  [[nodiscard]] bool holds_gradient(int i) const;
  // Every .grad that is a place of `old` becomes one of these, with the same values.
  void take_over(const GradientBuckets& old);
  // Every .grad that is a place becomes an ordinary tensor.
  void release();

  // A new step: no gradient is there.
  void begin();
  // The gradient of i is in its place. Posts, in order, what is complete now, but for the last
  // bucket.
  void ready(int i);
  // Posts what is left, complete or not, and what this rank says of the step.
  void post_rest(const parallel::StepStatus& own);
  // Blocks until all that was posted is done, but for what the hook has. Throws the group's error.
  void wait();
  // The hook's later steps: its results lie in the buckets then. ReductionFailed for one of another
  // shape.
  void finish_hook();
  // Multiplies all that lies in buckets.
  void scale(double factor);
  // Releases the references to gradients that were reduced in place; at the end of each step.
  void finish() { in_place_.assign(plan_.size(), at::Tensor()); }
  // Blocks for what the hook has posted in a step that has failed.
  void abandon_hook();
  // What all ranks say; after that.
  [[nodiscard]] parallel::StepStatus status() const;

 private:
  struct Place {
    std::size_t bucket = 0;
    int entry = 0;
    at::Tensor view;  // what is given out as .grad
  };
  void lay_out(std::size_t number);
  [[nodiscard]] std::string name_of(std::size_t number) const;
  [[nodiscard]] bool is_alone(std::size_t number) const;
  [[nodiscard]] bool status_rides() const {
    return hook_ == nullptr && !is_alone(plan_.size() - 1);
  }
  [[nodiscard]] parallel::Bucket& bucket(std::size_t number);
  // What a step posts of a bucket.
  [[nodiscard]] at::Tensor reduced(std::size_t number);
  [[nodiscard]] bool can_be_reduced_in_place(int i) const;
  [[nodiscard]] const at::Tensor& view(int i);
  [[nodiscard]] Place& place(int i) { return places_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const at::Tensor& parameter(int i) const {
    return parameters_[static_cast<std::size_t>(i)].tensor;
  }
  [[nodiscard]] at::Tensor status_place() const;
  void post_next();
  void post_status();
  [[nodiscard]] bool lays_out() const { return group_->size() > 1 || hook_ != nullptr; }
  [[nodiscard]] GradientBucket bucket_of_hook(std::size_t number) const;
  // What `run` throws ends the group.
  void run_hook(const std::function<void()>& run, const parallel::Bucket& bucket);
  void take_result(const parallel::Bucket& bucket, const at::Tensor& values) const;

  Group* group_;
  std::vector<NamedParameter> parameters_;
  std::vector<layout::TensorSpec> specs_;
  layout::PlanOptions limits_;
  layout::BucketPlan plan_;
  std::optional<Duration> timeout_;
  std::shared_ptr<CommunicationHook> hook_;
  // Empty in a group of one rank without a hook. Absent: of a gradient that was never copied.
  std::vector<std::optional<parallel::Bucket>> buckets_;
  std::vector<c10::Device> devices_;  // a bucket each
  std::vector<Place> places_;         // a parameter each

  std::vector<std::size_t> awaited_;  // gradients that each bucket still lacks
  std::size_t posted_ = 0;            // buckets
  // By bucket: what is reduced instead of it, in one dimension; undefined: nothing.
  std::vector<at::Tensor> in_place_;
  std::vector<Work> works_;
  std::vector<BucketFuture> futures_;  // of the hook, a bucket each
  parallel::StepStatus status_;
  at::Tensor status_sum_;  // with a hook: its call's
};

}  // namespace lockstep::data_parallel
