// BucketReducer: averages gradients in buckets; every rank has all averages.
//
// After the first step, the buckets are arranged in the order in which rank 0's gradients became
// ready. The averaged tensors are the parameters' .grad.
#pragma once

#include "parallel/backward_step.h"
#include "parallel/data/gradient_buckets.h"
#include "parallel/state_dict.h"
#include "parallel/step_clock.h"

#include <lockstep/parallel/data/distributed_data_parallel.h>

#include <memory>
#include <vector>

namespace lockstep::data_parallel {

class BucketReducer final : public parallel::Reducer {
 public:
  // `parameters`: those that require grad. Not collective. The handle owns the group.
  BucketReducer(Group& group, std::vector<NamedParameter> parameters,
                const DataParallelOptions& options, std::shared_ptr<parallel::WaitTime> waits);

  // Turns gradients into ordinary tensors.
  void release();

  [[nodiscard]] const std::vector<NamedParameter>& parameters() const override {
    return parameters_;
  }
  void check_parameters() const override {}
  void begin() override {}
  void begin_reduction() override;
  void accept(int i) override;
  void keep(int i) override { used_[static_cast<std::size_t>(i)] = true; }
  void end_backward(bool /*reduces*/) override {}
  [[nodiscard]] bool contribute_absent(int i) override;
  [[nodiscard]] bool contribute_unused(int i) override;
  void post_rest(const parallel::StepStatus& own, bool exchanges) override {
    buckets_.post_rest(own, exchanges);
  }
  [[nodiscard]] parallel::StepStatus wait() override;
  [[nodiscard]] bool scales_averages() const override {
    return !options_.hook || options_.hook->averages_over_all();
  }
  void scale_averages(double factor) override { factor_ = factor; }
  void publish(const parallel::StepStatus& all) override;
  void discard() override;
  void post_failure(const parallel::StepStatus& own) override;
  void clear_gradients(bool set_to_none) override {
    for (const NamedParameter& one : parameters_) parallel::zero_gradient(one.tensor, set_to_none);
  }
  void adopt_order(const std::vector<int>& order) override;

 private:
  // A parameter that was not used in a step.
  struct Absent {
    int number = 0;
    at::Tensor values;  // of its .grad, if that is in a bucket; else undefined
  };
  void lay_out();
  void forget_uses() { used_.assign(used_.size(), false); }

  Group& group_;
  std::vector<NamedParameter> parameters_;
  DataParallelOptions options_;
  std::shared_ptr<parallel::WaitTime> waits_;
  std::vector<int> order_;
  GradientBuckets buckets_;
  double factor_ = 1;       // of the step's averages
  std::vector<bool> used_;  // had a gradient since the last step, inside no_sync() or not
  std::vector<Absent> absent_;
};

}  // namespace lockstep::data_parallel
