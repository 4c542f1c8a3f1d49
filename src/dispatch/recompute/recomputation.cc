#include "dispatch/recompute/recomputation.h"

namespace lockstep::dispatch {

Recomputation::Counts Recomputation::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void Recomputation::reset_counts() {
  std::lock_guard lock(mutex_);
  counts_ = {};
}

bool Recomputation::is_used_outside(int block, std::size_t number) const {
  std::lock_guard lock(mutex_);
  return used_outside_.contains({block, number});
}

void Recomputation::note_use_outside(int block, std::size_t number) {
  std::lock_guard lock(mutex_);
  used_outside_.emplace(block, number);
}

void Recomputation::count_end(std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  ++counts_.blocks;
  counts_.released_bytes += bytes;
}

void Recomputation::count_replay(std::int64_t operations) {
  std::lock_guard lock(mutex_);
  ++counts_.recomputed_blocks;
  counts_.operations += operations;
}

}  // namespace lockstep::dispatch
