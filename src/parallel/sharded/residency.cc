#include "parallel/sharded/residency.h"

#include "parallel/backward_watch.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace lockstep::sharded {

// What a unit's storage asks for memory.
class Residency::Owner final : public shard::StorageOwner {
 public:
  Owner(Residency& residency, int unit) : residency_(residency), unit_(unit) {}
  void pin(const shard::StorageUse& use) override { residency_.pin(unit_, use); }
  void written() override { residency_.written(unit_); }
  void unpin() noexcept override { residency_.unpin(unit_); }

 private:
  Residency& residency_;
  int unit_;
};

std::weak_ptr<shard::StorageOwner> Residency::next_owner() {
  owners_.push_back(std::make_shared<Owner>(*this, static_cast<int>(owners_.size())));
  return owners_.back();
}

void Residency::add(std::unique_ptr<Unit> unit) {
  unit->before_slice_writes([this, number = units_.size()] { before_slice_write(number); });
  units_.push_back(std::move(unit));
  was_written_.push_back(false);
}

namespace {

std::string explained(const Unit& unit, const shard::StorageUse& use, const char* what) {
  return formatted("{} used parameter {}, and unit {} had to be gathered: {}", use.operation,
                   unit.parameter_at(use.offset), unit.name(), what);
}

}  // namespace

void Residency::pin(int unit, const shard::StorageUse& use) {
  std::lock_guard lock(mutex_);
  Unit& used = *units_[static_cast<std::size_t>(unit)];
  if (use.writes || unit != undoable_) forget_write();
  try {
    bring(unit);
    if (use.writes && used.is_node_shared() && !used.has_copy()) used.take_copy();
  } catch (const Mismatch& error) {
    throw Mismatch(explained(used, use, error.what()));
  } catch (const Timeout& error) {
    throw Timeout(explained(used, use, error.what()));
  }
  ++used.pins;
  if (!use.writes || use.operation != "aten::mul_") return;
  used.remember();
  undoable_ = unit;
}

void Residency::forget_write() {
  if (undoable_ >= 0) units_[static_cast<std::size_t>(undoable_)]->forget();
  undoable_ = -1;
}

void Residency::undo_last_write() {
  std::lock_guard lock(mutex_);
  if (undoable_ < 0) return;
  Unit& unit = *units_[static_cast<std::size_t>(undoable_)];
  unit.undo();
  forget_write();
  if (unit.present() && unit.pins == 0) release(unit);
}

void Residency::written(int unit) {
  std::lock_guard lock(mutex_);
  units_[static_cast<std::size_t>(unit)]->write_back();
  was_written_[static_cast<std::size_t>(unit)] = true;
}

void Residency::unpin(int unit) noexcept {
  std::lock_guard lock(mutex_);
  --units_[static_cast<std::size_t>(unit)]->pins;
}

void Residency::bring(int unit) {
  Unit& wanted = *units_[static_cast<std::size_t>(unit)];
  if (std::exchange(current_, unit) != unit) leave_others(unit);
  if (wanted.arriving() && wanted.outdated()) wanted.finish_gather();
  if (wanted.present() && wanted.outdated() && wanted.pins == 0) release(wanted);
  if (wanted.present()) return;
  if (level_ == ShardLevel::full) {
    record(unit);
    if (!wanted.arriving()) post(wanted);
    gather_ahead();
  } else {
    gather_everything();
  }
  wanted.finish_gather();
}

// The first use after a step: which unit it was does not matter, so ranks whose batches take
// different ways through the model agree.
void Residency::gather_everything() {
  for (const auto& unit : units_) {
    if (unit->arriving() && unit->outdated()) unit->finish_gather();
    if (unit->present() && unit->outdated() && unit->pins == 0) release(*unit);
    if (!unit->present() && !unit->arriving()) post(*unit);
  }
}

void Residency::post(Unit& unit) {
  if (before_gather_) before_gather_();
  if (unit.is_node_shared()) is_read_ = true;
  unit.post_gather();
}

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
    Unit& unit = *units_[static_cast<std::size_t>(order_[next])];
    if (!unit.present() && !unit.arriving()) post(unit);
  }
  if (end < order_.size()) units_[static_cast<std::size_t>(order_[end])]->fetch_ahead();
}

bool Residency::stays(const Unit& unit, bool in_backward) const {
  if (held_ > 0 || unit.pins > 0) return true;
  if (level_ != ShardLevel::full) return true;
  return !unit.settings().reshard_after_forward && (!in_backward || unit.trains());
}

void Residency::leave_others(int unit) {
  bool in_backward = parallel::current_backward() >= 0;
  for (int other = 0; other < static_cast<int>(units_.size()); ++other) {
    Unit& candidate = *units_[static_cast<std::size_t>(other)];
    if (other == unit || !candidate.present()) continue;
    bool changed = was_written_[static_cast<std::size_t>(other)] && held_ == 0;
    if (stays(candidate, in_backward) && !(changed && candidate.pins == 0)) continue;
    release(candidate);
  }
}

void Residency::release(Unit& unit) {
  auto number =
      static_cast<std::size_t>(std::find_if(units_.begin(), units_.end(),
                                            [&](const auto& one) { return one.get() == &unit; }) -
                               units_.begin());
  was_written_[number] = false;
  unit.release();
}

void Residency::unit_done(int unit) {
  std::lock_guard lock(mutex_);
  Unit& done = *units_[static_cast<std::size_t>(unit)];
  if (level_ == ShardLevel::full && done.present() && held_ == 0 && done.pins == 0) release(done);
}

void Residency::drop_all() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& unit = units_[i];
    if (unit->arriving()) unit->finish_gather();
    // Nobody updates a frozen unit: where the whole is kept, it stays as it is.
    bool frozen = !unit->trains() && !was_written_[i];
    if (level_ != ShardLevel::full && frozen && !unit->outdated()) continue;
    if (unit->present() && unit->pins == 0 && held_ == 0) release(*unit);
  }
  current_ = -1;
}

void Residency::end_iteration(bool failed) {
  std::lock_guard lock(mutex_);
  forget_write();
  if (!failed && !seen_.empty()) order_ = seen_;
  if (failed) order_.clear();
  seen_.clear();
  follows_ = !order_.empty();
  if (!failed) drop_all();
}

void Residency::invalidate() {
  std::lock_guard lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->arriving()) unit->finish_gather();
    if (unit->present() && unit->pins == 0) release(*unit);
  }
}

void Residency::all_have_read() {
  std::lock_guard lock(mutex_);
  is_read_ = false;
}

void Residency::before_write() {
  std::lock_guard lock(mutex_);
  for (const auto& unit : units_)
    if (unit->arriving()) unit->finish_gather();
  bool any_present = std::ranges::any_of(units_, [](const auto& unit) { return unit->present(); });
  wait_for_readers(any_present);
}

void Residency::before_slice_write(std::size_t unit) {
  std::lock_guard lock(mutex_);
  if (units_[unit]->arriving()) units_[unit]->finish_gather();
  wait_for_readers(units_[unit]->present());
}

void Residency::wait_for_readers(bool is_present) {
  if (units_.empty() || !units_.front()->is_node_shared()) return;
  if (held_ == 0 && !is_read_ && !is_present) return;
  units_.front()->meet_all();
  is_read_ = false;
  if (held_ > 0) return;
  // Who reads from now on gathers again, and so says it before the next write.
  for (const auto& unit : units_) {
    if (unit->arriving()) unit->finish_gather();
    if (unit->present() && unit->pins == 0) release(*unit);
    is_read_ = is_read_ || unit->present();
  }
}

void Residency::hold_all() {
  std::lock_guard lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->arriving()) unit->finish_gather();
    if (unit->present() && unit->outdated() && unit->pins == 0) release(*unit);
    if (!unit->present()) post(*unit);
  }
  for (const auto& unit : units_)
    if (unit->arriving()) unit->finish_gather();
  ++held_;
}

void Residency::release_all() {
  std::lock_guard lock(mutex_);
  if (--held_ > 0) return;
  if (!units_.empty() && units_.front()->is_node_shared()) is_read_ = true;
  drop_all();
}

}  // namespace lockstep::sharded
