#include "comm/engines/shm/reuse.h"

#include <algorithm>

namespace lockstep::shm {

void Reuse::allocated(std::size_t bytes) {
  used_ += bytes;
  free_ -= std::min(free_, bytes);
  handed_out_ += bytes;
  most_used_ = std::max(most_used_, used_);
  reused_ = std::max(reused_, most_free_ - free_);
  if (handed_out_ < std::max(least_window, turnovers * most_used_)) return;
  reused_before_ = reused_;
  handed_out_ = reused_ = 0;
  most_used_ = used_;
  most_free_ = free_;
}

void Reuse::freed(std::size_t bytes) {
  used_ -= std::min(used_, bytes);
  free_ += bytes;
  most_free_ = std::max(most_free_, free_);
}

std::size_t Reuse::bytes() const { return 2 * std::max(reused_before_, reused_); }

}  // namespace lockstep::shm
