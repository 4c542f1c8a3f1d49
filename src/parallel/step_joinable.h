// Joinables for handles that average in backward().
#pragma once

#include "base/check.h"
#include "base/scope_exit.h"
#include "parallel/backward_step.h"

#include <lockstep/parallel/join.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace lockstep::parallel {

// For a handle that communicates only in backward(): the end of backward() is a round.
class StepJoinable final : public Joinable {
 public:
  // Both must outlive this object.
  StepJoinable(std::string name, const Group& group, BackwardStep& step)
      : name_(std::move(name)), group_(group), step_(step) {}

  [[nodiscard]] std::string join_name() const override { return name_; }
  [[nodiscard]] const Group& join_group() const override { return group_; }
  void set_join(std::shared_ptr<JoinLink> link) override { step_.set_join(std::move(link), this); }
  void end_inputs() override { step_.clear_averages(); }
  [[nodiscard]] bool shadow(int /*round*/, const JoinRound& ranks) override {
    step_.shadow(ranks);
    return true;
  }
  void leave(int /*round*/) override { step_.leave(); }

 private:
  std::string name_;
  const Group& group_;
  BackwardStep& step_;
};

// For a handle that also communicates in forward: a whole forward and backward is one round.
class WholeStepJoinable final : public Joinable {
 public:
  // Sets the function to call at the first use of a parameter in a forward; null: no function.
  using OnForward = std::function<void(std::function<void()>)>;

  // All arguments must outlive this object.
  WholeStepJoinable(std::string name, const Group& group, BackwardStep& step, OnForward on_forward)
      : name_(std::move(name)), group_(group), step_(step), on_forward_(std::move(on_forward)) {}

  [[nodiscard]] std::string join_name() const override { return name_; }
  [[nodiscard]] const Group& join_group() const override { return group_; }
  void set_join(std::shared_ptr<JoinLink> link) override {
    check(!link || link->options().empty_step, "Join: {} needs JoinOptions::empty_step", name_);
    step_.set_join(link, nullptr);
    link_ = link;
    on_forward_(!link ? std::function<void()>() : [this, link] {
      (void)link->announce(*this, step_.is_paused() ? accumulates : averages);
    });
  }
  void end_inputs() override { step_.clear_averages(); }
  [[nodiscard]] bool shadow(int round, const JoinRound& /*ranks*/) override {
    if (round == accumulates) step_.pause();
    ScopeExit over([&] {
      if (round == accumulates) step_.resume();
    });
    std::shared_ptr<JoinLink>(link_)->run_empty_step();
    return round == averages;
  }

 private:
  enum Round { averages, accumulates };

  std::string name_;
  const Group& group_;
  BackwardStep& step_;
  OnForward on_forward_;
  std::shared_ptr<JoinLink> link_;
};

}  // namespace lockstep::parallel
