#include "parallel/sharded/unsharder.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "parallel/backward_hooks.h"

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace lockstep::sharded {

namespace {

constexpr const char* gathered_again = "is gathered again, because a slice was written since";
constexpr const char* slices_change =
    "changes: all ranks write their slices when they have used parameters since backward()";

}  // namespace

// Provides the memory of a unit's storage.
class Unsharder::Owner final : public dispatch::StorageOwner {
 public:
  Owner(Unsharder& unsharder, int unit) : unsharder_(unsharder), unit_(unit) {}
  void pin(const dispatch::StorageUse& use) override { unsharder_.pin(unit_, use); }
  void written() override { unsharder_.written(unit_); }
  void unpin() noexcept override { unsharder_.unpin(unit_); }

 private:
  Unsharder& unsharder_;
  int unit_;
};

// Handles writes of operations to a unit's slices.
class Unsharder::SliceOwner final : public dispatch::StorageOwner {
 public:
  SliceOwner(Unsharder& unsharder, std::size_t unit) : unsharder_(unsharder), unit_(unit) {}
  void pin(const dispatch::StorageUse& use) override {
    if (!use.writes) return;
    unsharder_.before_slice_write(unit_);
    unsharder_.units_[unit_]->slice_written();
  }
  void written() override { unsharder_.units_[unit_]->slice_written(); }
  void unpin() noexcept override {}

 private:
  Unsharder& unsharder_;
  std::size_t unit_;
};

Unit& Unsharder::add(std::string name, std::vector<NamedParameter> parameters,
                     std::shared_ptr<BufferPool> pool, const UnitSettings& settings) {
  std::size_t number = units_.size();
  auto whole = std::make_shared<Owner>(*this, static_cast<int>(number));
  auto slices = std::make_shared<SliceOwner>(*this, number);
  units_.push_back(std::make_unique<Unit>(std::move(name), std::move(parameters), gather_,
                                          std::move(pool), whole, slices, settings));
  owners_.push_back(std::move(whole));
  owners_.push_back(std::move(slices));
  Lock lock(mutex_);
  was_written_.push_back(false);
  writes_.emplace_back();
  dropped_.push_back(false);
  return *units_.back();
}

namespace {

std::string tag_of(const Unit& unit, const char* why) {
  return formatted("unit {} {}", unit.name(), why);
}

std::string explained(const Unit& unit, const dispatch::StorageUse& use, const char* what) {
  return formatted("{} used parameter {}, and unit {} had to be gathered: {}", use.operation,
                   unit.parameter_at(use.offset), unit.name(), what);
}

}  // namespace

void Unsharder::pin(int unit, const dispatch::StorageUse& use) {
  Lock lock(mutex_);
  Unit& used = *units_[static_cast<std::size_t>(unit)];
  begin_forward();
  try {
    bring(unit);
    if (use.writes) used.begin_write();
  } catch (const Mismatch& error) {
    note_end(error);
    throw Mismatch(explained(used, use, error.what()));
  } catch (const Timeout& error) {
    note_end(error);
    throw Timeout(explained(used, use, error.what()));
  } catch (const Error& error) {
    note_end(error);
    throw;
  }
  used.use();
  ++used.pins;
  auto& writes = writes_[static_cast<std::size_t>(unit)];
  if (use.writes && writes.fingerprint == 0) writes.offset = use.offset;
}

void Unsharder::note_end(const Error& error) {
  if (dynamic_cast<const BadInput*>(&error) || dynamic_cast<const SystemError*>(&error)) return;
  Lock lock(end_mutex_);
  if (end_.empty()) end_ = error.what();
}

std::string Unsharder::end() {
  Lock lock(end_mutex_);
  return end_;
}

void Unsharder::written(int unit) {
  Lock lock(mutex_);
  Unit& used = *units_[static_cast<std::size_t>(unit)];
  used.write_back();
  was_written_[static_cast<std::size_t>(unit)] = true;
  auto& writes = writes_[static_cast<std::size_t>(unit)];
  writes.fingerprint = static_cast<std::int64_t>(
      combine_fingerprints(static_cast<std::uint64_t>(writes.fingerprint),
                           static_cast<std::uint64_t>(used.fingerprint())) |
      1);
}

bool Unsharder::has_writes() {
  Lock lock(mutex_);
  return std::ranges::any_of(writes_, [](const Writes& one) { return one.fingerprint != 0; });
}

std::vector<Unsharder::Writes> Unsharder::take_writes() {
  Lock lock(mutex_);
  return std::exchange(writes_, std::vector<Writes>(writes_.size()));
}

void Unsharder::unpin(int unit) noexcept {
  Lock lock(mutex_);
  Unit& used = *units_[static_cast<std::size_t>(unit)];
  --used.pins;
  // The operation that used the unit has written a slice.
  if (dropped_[static_cast<std::size_t>(unit)] && used.present() && used.pins == 0)
    reshard(static_cast<std::size_t>(unit));
}

void Unsharder::on_forward(std::function<void()> call) {
  Lock lock(forward_mutex_);
  on_forward_ = std::move(call);
}

void Unsharder::begin_forward() {
  if (in_forward_ || !at::GradMode::is_enabled() || parallel::current_backward() >= 0) return;
  std::function<void()> call;
  {
    Lock lock(forward_mutex_);  // not held during the call, which may end the Join
    call = on_forward_;
  }
  if (!call) return;
  call();
  in_forward_ = true;
}

void Unsharder::bring(int unit) {
  Unit& wanted = *units_[static_cast<std::size_t>(unit)];
  if (std::exchange(current_, unit) != unit) leave_others(unit);
  drop_if_outdated(static_cast<std::size_t>(unit));
  if (wanted.present()) return;
  bool again = is_again(unit);
  if (level_ == ShardLevel::full) {
    record(unit);
    if (!wanted.arriving())
      post_unshard(static_cast<std::size_t>(unit), again ? tag_of(wanted, gathered_again) : "");
    prefetch_next();
  } else {
    unshard_all();
  }
  // If all units are gathered together, the message names the same unit on all ranks.
  const Unit& named = level_ == ShardLevel::full ? wanted : *units_.front();
  if (again) meet(named, wanted.gather(), gathered_again);
  wanted.wait_for_unshard();
}

// Returns true if ranks that wrote no slice do not gather now.
bool Unsharder::is_again(int unit) const {
  if (parallel::current_backward() >= 0) return false;
  if (level_ == ShardLevel::full) return dropped_[static_cast<std::size_t>(unit)];
  return std::ranges::find(dropped_, true) != dropped_.end();
}

// Blocks until all ranks have made this call. A rank that makes another call gets a Mismatch in the
// group of `own` or in the other group, depending on its next call.
void Unsharder::meet(const Unit& unit, Work own, const char* why) {
  Work other = reduce_.barrier({.tag = tag_of(unit, why), .timeout = timeout_});
  Deadline deadline = Deadline::after(timeout_.value_or(reduce_.timeout()));
  while (!own.done() && !other.done() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (own.done()) own.wait();
  other.wait();
  own.wait();
}

// Handles the first use after a step. It does not matter which unit was used, so ranks whose
// batches take different paths through the model agree.
void Unsharder::unshard_all() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    drop_if_outdated(i);
    if (!units_[i]->present() && !units_[i]->arriving()) post_unshard(i);
  }
}

void Unsharder::post_unshard(std::size_t number, std::string_view tag) {
  Unit& unit = *units_[number];
  if (deferred_) deferred_->settle();
  if (unit.is_read_by_peers()) is_read_ = true;
  unit.unshard(tag);
  dropped_[number] = false;
  if (std::ranges::find(unsharded_, static_cast<int>(number)) == unsharded_.end())
    unsharded_.push_back(static_cast<int>(number));
  may_drop_ = may_drop_ || unit.trains();
}

bool Unsharder::stays(const Unit& unit, bool in_backward) const {
  if (held_ > 0 || unit.pins > 0) return true;
  if (level_ != ShardLevel::full) return true;
  return !unit.settings().options.reshard_after_forward && (!in_backward || unit.trains());
}

void Unsharder::leave_others(int unit) {
  if (level_ != ShardLevel::full && std::ranges::find(was_written_, true) == was_written_.end())
    return;
  bool in_backward = parallel::current_backward() >= 0;
  std::erase_if(unsharded_, [&](int other) LOCKSTEP_REQUIRES(mutex_) {
    Unit& candidate = *units_[static_cast<std::size_t>(other)];
    if (other == unit) return false;
    bool may_stay = stays(candidate, in_backward);
    if (!may_stay) dropped_[static_cast<std::size_t>(other)] = false;
    bool changed = was_written_[static_cast<std::size_t>(other)] && held_ == 0;
    if (may_stay && !(changed && candidate.pins == 0)) return false;
    if (candidate.present()) reshard(static_cast<std::size_t>(other));
    return !candidate.arriving();
  });
}

void Unsharder::reshard(std::size_t number) {
  was_written_[number] = false;
  units_[number]->reshard();
}

void Unsharder::unit_done(int unit) {
  Lock lock(mutex_);
  Unit& done = *units_[static_cast<std::size_t>(unit)];
  if (level_ == ShardLevel::full && done.present() && held_ == 0 && done.pins == 0)
    reshard(static_cast<std::size_t>(unit));
}

void Unsharder::drop_all() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& unit = units_[i];
    if (unit->arriving()) unit->wait_for_unshard();
    // A frozen unit is never updated, so a permanent whole stays valid.
    bool frozen = !unit->trains() && !was_written_[i];
    if (level_ != ShardLevel::full && frozen && !unit->outdated()) continue;
    if (unit->present() && unit->pins == 0 && held_ == 0) reshard(i);
  }
  std::erase_if(unsharded_, [&](int number) {
    const Unit& unit = *units_[static_cast<std::size_t>(number)];
    return !unit.present() && !unit.arriving();
  });
  dropped_.assign(dropped_.size(), false);
  current_ = -1;
}

void Unsharder::invalidate() {
  Lock lock(mutex_);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = *units_[i];
    if (unit.arriving()) unit.wait_for_unshard();
    if (unit.present() && unit.pins == 0) reshard(i);
  }
  dropped_.assign(dropped_.size(), false);
}

void Unsharder::all_have_read() {
  Lock lock(mutex_);
  is_read_ = false;
}

void Unsharder::before_write() {
  Lock lock(mutex_);
  for (const auto& unit : units_) {
    if (unit->arriving()) unit->wait_for_unshard();
    unit->before_shard_write();
  }
  wait_for_readers(std::ranges::any_of(units_, [](const auto& unit) { return unit->present(); }));
}

void Unsharder::before_slice_write(std::size_t unit) {
  Lock lock(mutex_);
  if (units_[unit]->arriving()) units_[unit]->wait_for_unshard();
  units_[unit]->before_shard_write();
  wait_for_readers(units_[unit]->present());
  drop_before_write(unit);
}

void Unsharder::drop_before_write(std::size_t unit) {
  drop(unit);
  if (!may_drop_ || held_ > 0 || parallel::current_backward() >= 0) return;
  may_drop_ = false;
  for (std::size_t other = 0; other < units_.size(); ++other)
    if (units_[other]->trains()) drop(other);
}

// Handles a kernel that has written a slice past LibTorch's dispatcher.
void Unsharder::drop_if_outdated(std::size_t number) {
  const Unit& unit = *units_[number];
  if ((unit.present() || unit.arriving()) && unit.outdated() && unit.pins == 0) drop(number);
}

void Unsharder::drop(std::size_t number) {
  Unit& unit = *units_[number];
  if (unit.arriving()) unit.wait_for_unshard();
  if (!unit.present()) return;
  dropped_[number] = true;
  if (unit.pins == 0) reshard(number);
}

void Unsharder::wait_for_readers(bool is_present) {
  if (units_.empty() || !units_.front()->is_read_by_peers()) return;
  if (held_ == 0 && !std::exchange(is_read_, false) && !is_present) return;
  // A write drops gathered values, so a later use gathers again and sets is_read_. But units that
  // stay gathered (frozen ones) may be used without a gather, so wait if the unit is present.
  Unit& named = *units_.front();
  meet(named, named.post_barrier(tag_of(named, slices_change)), slices_change);
}

void Unsharder::hold_all() {
  Lock lock(mutex_);
  for (const auto& unit : units_)
    if (unit->arriving()) unit->wait_for_unshard();
  bool again = std::ranges::find(dropped_, true) != dropped_.end();
  unshard_all();
  for (const auto& unit : units_) {
    if (!unit->arriving()) continue;
    if (std::exchange(again, false)) meet(*units_.front(), unit->gather(), gathered_again);
    unit->wait_for_unshard();
  }
  ++held_;
}

void Unsharder::release_all() {
  Lock lock(mutex_);
  if (--held_ > 0) return;
  if (!units_.empty() && units_.front()->is_read_by_peers()) is_read_ = true;
  drop_all();
}

// The order of gathers: recording and prefetching.
void Unsharder::record(int unit) {
  const bool in_backward = parallel::current_backward() >= 0;
  if (!at::GradMode::is_enabled() && !in_backward) return;
  if (seen_.empty()) {
    begins_in_backward_ = in_backward;
    follows_ = true;
  }
  const std::vector<int>& order = order_of_now();
  const std::size_t place = seen_.size();
  follows_ = follows_ && place < order.size() && order[place] == unit;
  seen_.push_back(unit);
}

void Unsharder::prefetch_next() {
  if (!follows_ || held_ > 0) return;
  if (!at::GradMode::is_enabled() && parallel::current_backward() < 0) return;
  const std::vector<int>& order = order_of_now();
  std::size_t end = std::min(order.size(), seen_.size() + static_cast<std::size_t>(prefetch_));
  for (std::size_t next = seen_.size(); next < end; ++next) {
    auto number = static_cast<std::size_t>(order[next]);
    if (!units_[number]->present() && !units_[number]->arriving()) post_unshard(number);
  }
  if (end < order.size()) units_[static_cast<std::size_t>(order[end])]->fetch_ahead();
}

void Unsharder::end_iteration() {
  Lock lock(mutex_);
  if (!seen_.empty()) order_of_now() = seen_;
  begin_order();
}

void Unsharder::end_failed_iteration() {
  Lock lock(mutex_);
  begin_order();
}

void Unsharder::begin_order() {
  in_forward_ = false;
  seen_.clear();
  follows_ = false;
  drop_all();
}

}  // namespace lockstep::sharded
