// GradientBuckets: the gradients of a list of parameters in the buckets that are reduced, and the
// works of the step that is under way.
//
// Beside the gradients, the last bucket carries one status element a parameter and one more for the
// whole rank. Averaged like everything else, they tell every rank how many ranks had no gradient
// for a parameter, or an exception, for no message of their own. In a group of one rank nothing is
// laid out or copied; only the status remains.
//
// Not thread-safe: Reducer holds its mutex.
#pragma once

#include "layout/bucket_plan.h"
#include "parallel/bucket.h"

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::data_parallel {

class GradientBuckets {
 public:
  // Local. `order`: that in which gradients are expected to become ready.
  GradientBuckets(Group group, std::vector<NamedParameter> parameters, std::span<const int> order,
                  layout::PlanOptions limits, std::optional<Duration> timeout);

  // False when a parameter has other sizes, dtype or device than at the construction.
  [[nodiscard]] bool fit() const;
  [[nodiscard]] const layout::BucketPlan& plan() const { return plan_; }

  // Writes into the place of parameter i what its .grad holds, or zeros; leaves .grad alone.
  void fill(int i);
  // Points .grad of i at its place.
  void adopt(int i);
  [[nodiscard]] bool holds_gradient(int i) const;
  // Every .grad that is a place of `old` becomes one of these, with the same values.
  void take_over(const GradientBuckets& old);
  // Every .grad that is a place becomes an ordinary tensor.
  void release();

  // A new step: no gradient is there and every status is 0.
  void begin();
  // The gradient of i is in its place. Posts, in order, what is complete now.
  void ready(int i);
  // Posts what is left, complete or not.
  void post_rest();
  // Blocks until all that was posted is done. Throws the group's error.
  void wait();

  // What this rank says about the step, before its last bucket is posted.
  void say_missing(int i) { status_[static_cast<std::size_t>(i)] = 1.0F; }
  void say_failed() { status_.back() = 1.0F; }
  // How many ranks said so; after wait().
  [[nodiscard]] int ranks_missing(int i) const {
    return ranks(status_[static_cast<std::size_t>(i)]);
  }
  [[nodiscard]] int ranks_failed() const { return ranks(status_.back()); }

 private:
  struct Place {
    std::size_t bucket = 0;
    int entry = 0;
    at::Tensor view;  // what is given out as .grad
  };
  void lay_out(std::size_t number);
  [[nodiscard]] const at::Tensor& view(int i);
  [[nodiscard]] Place& place(int i) { return places_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const at::Tensor& parameter(int i) const {
    return parameters_[static_cast<std::size_t>(i)].tensor;
  }
  [[nodiscard]] at::Tensor status_place() const;
  [[nodiscard]] int ranks(float status) const;
  void post_next();

  Group group_;
  std::vector<NamedParameter> parameters_;
  std::vector<layout::TensorSpec> specs_;
  layout::BucketPlan plan_;
  std::optional<Duration> timeout_;
  std::vector<parallel::Bucket> buckets_;  // empty in a group of one rank
  std::vector<Place> places_;              // a parameter each

  std::vector<std::size_t> awaited_;  // gradients that each bucket still lacks
  std::size_t posted_ = 0;            // buckets
  std::vector<Work> works_;
  std::vector<float> status_;
};

}  // namespace lockstep::data_parallel
