// GradientBuckets: the gradients of a list of parameters in the buckets that are reduced, and the
// works of the current step.
//
// The last bucket also carries the status of this rank (backward_step.h). The status is averaged
// with the gradients, so every rank learns, without a separate message, how many ranks had no
// gradient for a parameter or threw an exception. So the last bucket is posted at the end of
// backward(). On a group that has_streams(), ranks rarely exchange their status. There, the last
// bucket is posted as soon as it is ready, like the others, and the status is a separate call. In a
// group of one rank, nothing is arranged or copied; only the status remains.
//
// A gradient with its own bucket is reduced in the memory that autograd allocated, if no other
// tensor shares it; otherwise it is copied into a bucket, which is then allocated. If that is the
// last bucket, the status is a separate call, too.
//
// With a communication hook, buckets go through it, on one rank too, and the status is a separate
// call after the first calls of all buckets. Later steps of the hook run only once the status of
// all ranks is known to be good, so that a rank whose backward() has failed need not take part in
// them.
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

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::data_parallel {

class GradientBuckets {
 public:
  // Not collective. `order`: the expected order in which gradients become ready. The group must
  // outlive this object.
  GradientBuckets(Group& group, std::vector<NamedParameter> parameters, std::span<const int> order,
                  layout::PlanOptions limits, std::optional<Duration> timeout,
                  std::shared_ptr<CommunicationHook> hook = nullptr);

  // Returns false if a parameter's sizes, dtype or device have changed since the construction.
  [[nodiscard]] bool fit() const;
  [[nodiscard]] const layout::BucketPlan& plan() const { return plan_; }

  // Writes the .grad of parameter i, or zeros, into its place; does not change .grad.
  void fill(int i);
  // Points .grad of parameter i at its place.
  void adopt(int i);
  // Does fill() and adopt(), except for a gradient that is reduced in place.
  void take(int i);
  [[nodiscard]] bool holds_gradient(int i) const;
  // Moves every .grad that is a place of `old` to the place in this object, with the same values.
  void take_over(const GradientBuckets& old);
  // Turns every .grad that is a place into an ordinary tensor.
  void release();

  // Begins a new step without gradients.
  void begin();
  // Call when the gradient of parameter i is in its place. Posts, in order, the buckets that are
  // complete, except a last one that carries the status.
  void ready(int i);
  // Posts the remaining buckets, complete or not, and this rank's status for the step.
  void post_rest(const parallel::StepStatus& own, bool exchanges = true);
  // Blocks until all posts have completed, except those of the hook. Throws the group's error.
  void wait();
  // Runs the hook's later steps: afterwards its results are in the buckets. Throws ReductionFailed
  // for a result of another shape.
  void finish_hook();
  // Multiplies the contents of all buckets.
  void scale(double factor);
  // Releases the references to gradients that were reduced in place; call at the end of each step.
  void finish() { in_place_.assign(plan_.size(), at::Tensor()); }
  // Call in a failed step: blocks until the hook's posts have completed.
  void abandon_hook();
  // Returns the combined status of all ranks. Call after wait().
  [[nodiscard]] parallel::StepStatus status() const;

 private:
  struct BucketEntry {
    std::size_t bucket = 0;
    int entry = 0;
    at::Tensor view;  // the tensor given out as .grad
  };
  void lay_out(std::size_t number);
  [[nodiscard]] std::string name_of(std::size_t number) const;
  [[nodiscard]] bool is_alone(std::size_t number) const;
  [[nodiscard]] parallel::Bucket& bucket(std::size_t number);
  // Returns the tensor that a step posts for a bucket.
  [[nodiscard]] at::Tensor reduced(std::size_t number);
  [[nodiscard]] bool can_be_reduced_in_place(int i) const;
  [[nodiscard]] const at::Tensor& view(int i);
  [[nodiscard]] BucketEntry& place(int i) { return places_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const at::Tensor& parameter(int i) const {
    return parameters_[static_cast<std::size_t>(i)].tensor;
  }
  [[nodiscard]] at::Tensor status_place() const;
  void post_next();
  [[nodiscard]] GradientBucket bucket_of_hook(std::size_t number) const;
  // An exception of `run` ends the group.
  void run_hook(const std::function<void()>& run, const parallel::Bucket& bucket);
  void take_result(const parallel::Bucket& bucket, const at::Tensor& values) const;

  Group* group_;
  std::vector<NamedParameter> parameters_;
  std::vector<layout::TensorSpec> specs_;
  layout::PlanOptions limits_;
  layout::BucketPlan plan_;
  std::optional<Duration> timeout_;
  std::shared_ptr<CommunicationHook> hook_;
  bool status_rides_ = false;  // in the last bucket
  // Empty in a group of one rank without a hook. An element is std::nullopt if its gradient was
  // never copied.
  std::vector<std::optional<parallel::Bucket>> buckets_;
  std::vector<c10::Device> devices_;  // by bucket
  std::vector<BucketEntry> places_;   // by parameter

  std::vector<std::size_t> awaited_;  // by bucket: number of gradients that are missing
  std::size_t posted_ = 0;            // buckets
  // By bucket: the tensor that is reduced instead of it, in one dimension; undefined: the bucket.
  std::vector<at::Tensor> in_place_;
  std::vector<Work> works_;
  std::vector<BucketFuture> futures_;  // of the hook, by bucket
  parallel::StepStatus status_;
  bool exchanges_status_ = true;  // in this step
  at::Tensor status_sum_;         // the result of a separate call
};

}  // namespace lockstep::data_parallel
