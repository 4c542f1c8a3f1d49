// Residency's order of gathers: how it is recorded and gathered ahead.
#include "parallel/backward_watch.h"
#include "parallel/sharded/residency.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

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

void Residency::end_iteration() {
  Lock lock(mutex_);
  if (!seen_.empty()) order_ = seen_;
  begin_order();
}

void Residency::end_failed_iteration() {
  Lock lock(mutex_);
  begin_order();
}

void Residency::begin_order() {
  in_forward_ = false;
  seen_.clear();
  follows_ = !order_.empty();
  drop_all();
}

}  // namespace lockstep::sharded
