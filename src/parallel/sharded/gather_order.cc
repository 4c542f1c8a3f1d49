// Residency's order of gathers: how it is recorded and gathered ahead, and how a rank whose
// backward() has failed follows the others.
#include "base/log.h"
#include "parallel/backward_watch.h"
#include "parallel/sharded/residency.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace lockstep::sharded {

void Residency::record(int unit) {
  if (!at::GradMode::is_enabled() && parallel::current_backward() < 0) return;
  std::size_t place = seen_.size();
  follows_ = follows_ && place < order_.size() && order_[place] == unit;
  seen_.push_back(unit);
}

void Residency::gather_ahead() {
  if (!follows_ || held_ > 0) return;
  if (!at::GradMode::is_enabled() && parallel::current_backward() < 0) return;
  std::size_t end = std::min(order_.size(), seen_.size() + static_cast<std::size_t>(prefetch_));
  for (std::size_t next = seen_.size(); next < end; ++next) {
    auto number = static_cast<std::size_t>(order_[next]);
    if (!units_[number]->present() && !units_[number]->arriving()) post(number);
  }
  if (end < order_.size()) units_[static_cast<std::size_t>(order_[end])]->fetch_ahead();
}

// The order is the same on all ranks, so either all do or none.
bool Residency::says_next() const {
  return level_ == ShardLevel::full && !follows_ && held_ == 0 && gather_.size() > 1;
}

NextGather Residency::next_gather(std::optional<int> own) {
  return {gather_, own, units_.front()->device(), timeout_};
}

void Residency::say_next(int unit) {
  // Ranks that say different units find a Mismatch when they gather.
  parallel::WaitTime::Scope waiting(*units_.front()->settings().waits);
  (void)next_gather(unit).answer();
}

// Whether another rank has had an exception.
bool Residency::say_end() {
  parallel::WaitTime::Scope waiting(*units_.front()->settings().waits);
  NextGather::Answer next = next_gather(NextGather::end).answer();
  if (!next.agreed) gather_.barrier({.tag = "end of backward()", .timeout = timeout_}).wait();
  return next.failed;
}

void Residency::end_iteration() {
  Lock lock(mutex_);
  in_forward_ = false;
  last_write_ = {};
  bool has_failed = says_next() && say_end();
  note_what_is_left();
  if (!seen_.empty()) order_ = seen_;
  if (has_failed) order_.clear();
  begin_order();
  drop_all();
}

// What is arriving was gathered ahead.
void Residency::note_what_is_left() {
  order_before_.clear();
  left_before_.clear();
  if (!follows_ || held_ > 0 || seen_.size() == order_.size()) return;
  order_before_ = order_;
  left_before_.assign(order_.begin() + static_cast<std::ptrdiff_t>(seen_.size()), order_.end());
  for (const auto& unit : units_) {
    if (!unit->arriving()) continue;
    auto ahead = std::ranges::find_if(
        left_before_, [&](int one) { return units_[static_cast<std::size_t>(one)] == unit; });
    if (ahead != left_before_.end()) left_before_.erase(ahead);
  }
}

void Residency::begin_order() {
  seen_.clear();
  follows_ = !order_.empty();
}

bool Residency::follow_others(bool blocks) noexcept {
  Lock lock(mutex_);
  if (level_ != ShardLevel::full || held_ > 0 || others_ended_) return false;
  try {
    others_ended_ = !follow(blocks);
  } catch (const std::exception& error) {
    // The group is dead, and its next call says so; the exception of backward() says more.
    log::debug("gathers after a backward() that failed: {}", error.what());
    others_ended_ = true;
  }
  return !others_ended_;
}

// Whether there may be more.
bool Residency::follow(bool blocks) {
  if (followed_ >= 0) {
    if (!blocks && !units_[static_cast<std::size_t>(followed_)]->gather().done()) return true;
    finish_for_others(std::exchange(followed_, -1));
  }
  if (follows_) {
    if (seen_.size() == order_.size()) return false;
    followed_ = order_[seen_.size()];
    seen_.push_back(followed_);
  } else {
    if (gather_.size() == 1) return false;
    if (!question_) question_.emplace(next_gather(std::nullopt));
    if (!blocks && !question_->done()) return true;
    NextGather::Answer next = question_->answer();
    question_.reset();
    if (!next.agreed || next.unit == NextGather::end) return false;
    followed_ = next.unit;
    // What was gathered ahead while the order was known is not what they gather now.
    Unit& unit = *units_[static_cast<std::size_t>(followed_)];
    if (unit.arriving()) unit.finish_gather();
  }
  post_for_others(followed_);
  return true;
}

// Nothing is read here, so what is known of readers stays as it is.
void Residency::post_for_others(int number) {
  auto place = static_cast<std::size_t>(number);
  bool was_read = is_read_;
  if (units_[place]->present()) release(place);
  if (!units_[place]->arriving()) post(place);
  is_read_ = was_read;
}

void Residency::finish_for_others(int number) {
  units_[static_cast<std::size_t>(number)]->finish_gather();
  release(static_cast<std::size_t>(number));
}

void Residency::end_failed_iteration() {
  while (follow_others(/*blocks=*/true)) {
  }
  Lock lock(mutex_);
  in_forward_ = false;
  last_write_ = {};
  question_.reset();
  followed_ = -1;
  others_ended_ = false;
  if (!follows_) order_.clear();
  begin_order();
  drop_all();
}

void Residency::join_failure() {
  Lock lock(mutex_);
  if (level_ != ShardLevel::full || order_before_.empty()) return;
  order_ = std::exchange(order_before_, {});
  for (int number : std::exchange(left_before_, {})) {
    post_for_others(number);
    finish_for_others(number);
  }
  begin_order();
}

}  // namespace lockstep::sharded
