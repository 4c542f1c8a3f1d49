// UnitReducer: averages gradients unit by unit; each rank keeps the averages of its shard.
//
// A gradient is moved to its place in its unit. Complete units are posted in one fixed order; at
// levels gradients and full, only a few are in flight at a time. The status of a rank is a separate
// call after them. After the first step, units are posted in the order in which rank 0's units
// became complete.
#pragma once

#include "parallel/backward_step.h"
#include "parallel/sharded/unit.h"
#include "parallel/sharded/unit_gradients.h"
#include "parallel/sharded/unsharder.h"

#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace lockstep::sharded {

class UnitReducer final : public parallel::Reducer {
 public:
  // The handle keeps the groups.
  UnitReducer(Groups& groups, Unsharder& unsharder, const std::shared_ptr<BufferPool>& pool,
              std::shared_ptr<LazyGradients> deferred, const ShardOptions& options);

  // Removes gradients and placeholders; the handle no longer uses them.
  void end() { gradients_.clear(); }
  // Local.
  void clear_gradients(bool set_to_none) override;
  // Returns true if a slice has a gradient.
  [[nodiscard]] bool has_gradients() const;
  void free_buffers();
  // Returns the bytes of gradients between backward() and the next step.
  [[nodiscard]] std::int64_t kept_bytes() const;

  [[nodiscard]] const std::vector<NamedParameter>& parameters() const override {
    return parameters_;
  }
  void check_parameters() const override;
  void begin() override;
  void begin_reduction(bool posts_early) override;
  void accept(int i) override;
  void keep(int i) override;
  void end_backward(bool reduces) override;
  [[nodiscard]] bool contribute_absent(int i) override;
  void post_rest(const parallel::StepStatus& own, bool exchanges) override;
  [[nodiscard]] parallel::StepStatus wait() override;
  [[nodiscard]] bool has_written() override { return unsharder_.has_writes(); }
  void compare_writes(Group& group, const CallOptions& call) override;
  void forget_writes() override { static_cast<void>(unsharder_.take_writes()); }
  void publish(const parallel::StepStatus& all) override;
  void discard() override;
  void end_failed_backward() override;
  void adopt_order(const std::vector<int>& order) override;

 private:
  void close_rows();
  void post_ready();
  void publish_oldest();
  void discard_all();
  void forward_all();
  [[nodiscard]] std::vector<bool> unused_in(int unit, const parallel::StepStatus& all) const;
  [[nodiscard]] const Unit& unit(int number) const {
    return *unsharder_.units()[static_cast<std::size_t>(number)];
  }
  [[nodiscard]] UnitGradients& gradients(int unit) const {
    return *gradients_[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] const UnitEntry& place(int i) const { return places_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const at::Tensor& parameter(int i) const {
    return parameters_[static_cast<std::size_t>(i)].tensor;
  }

  Groups& groups_;
  Unsharder& unsharder_;
  ShardOptions options_;
  std::shared_ptr<LazyGradients> deferred_;                // null: reduced in backward()
  std::vector<std::unique_ptr<UnitGradients>> gradients_;  // one a unit; null where none trains
  std::vector<NamedParameter> parameters_;                 // of units that train
  std::vector<UnitEntry> places_;                          // a parameter each
  std::vector<int> order_;                                 // of units that train

  std::vector<int> awaited_;   // by unit: parameters that are not ready
  std::size_t posted_ = 0;     // units of order_
  std::deque<int> in_flight_;  // posted and not published
  parallel::StepStatus status_;
  at::Tensor sent_;  // the same, on its way
  Work sent_work_;
};

}  // namespace lockstep::sharded
