#include "comm/engines/shm/pipeline.h"

#include <cstring>
#include <new>

namespace lockstep::shm {

Pipeline::Pipeline(const PipelineMemory& memory) : memory_(memory) {
  for (std::size_t turn = 0; turn < memory_.turns(); ++turn)
    new (&memory_.state(turn)) std::atomic<std::uint8_t>(0);
}

bool Pipeline::make_room(InWindow& user) {
  if (user.segment.bytes == 0) return true;
  auto state = memory_.state(user.turn).load(std::memory_order_acquire);
  if ((state & PipelineMemory::done) == 0) return false;
  copy_out(user.turn, user.segment);
  user.segment = {};
  return true;
}

bool Pipeline::copy_in(Buffer segment, bool spills) {
  if (segment.bytes > 0) {
    auto& user = window_[next_ % window_.size()];
    bool has_room = make_room(user);
    if (!has_room && !spills) return false;
    if (has_room) user = {next_, segment};
    std::memcpy(has_room ? memory_.place(next_) : memory_.spill(next_), segment.data,
                segment.bytes);
    // seq_cst: a doorbell check follows (waiting.h).
    memory_.state(next_).store(has_room ? PipelineMemory::in_window : PipelineMemory::in_spill,
                               std::memory_order_seq_cst);
  }
  ++next_;
  return true;
}

void Pipeline::copy_out(std::size_t turn, Buffer segment) {
  auto state = memory_.state(turn).load(std::memory_order_acquire);
  if ((state & PipelineMemory::taken) != 0) return;
  std::memcpy(segment.data, memory_.segment(turn), segment.bytes);
  memory_.state(turn).fetch_or(PipelineMemory::taken, std::memory_order_relaxed);
}

}  // namespace lockstep::shm
