// Pipeline: how a large tensor in private memory takes part in an all_reduce, so that its bytes
// pass through the caches and not through main memory once more.
//
// The owner copies segment after segment into a window of a few, in turns that let all parts
// advance together; a rank that finds a segment that all have copied in combines it where it
// lies; the owner copies the result out before it uses that place of the window again. A post
// waits for nobody: when the peers stay behind, the rest is copied into a spill area as large as
// the tensor.
//
// Invariants, in shared memory:
//   - state(turn) gets its bits in this order: in_window or in_spill (by the owner), done (by who
//     has claimed the segment), taken (by the owner).
//   - A segment's bytes belong to the owner before the first bit and after `done`, in between to
//     who has claimed it.
#pragma once

#include "comm/engines/shm/posting.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

// Segments in the order in which they are copied in.
struct Turns {
  std::size_t segment_bytes = 0;
  std::size_t count = 0;
};

// The block as everybody sees it: window, spill area, states. A view.
class PipelineMemory {
 public:
  enum State : std::uint8_t { in_window = 1, in_spill = 2, done = 4, taken = 8 };
  static constexpr std::size_t window_segments = 8;

  PipelineMemory() = default;
  PipelineMemory(std::byte* base, Turns turns) : base_(base), turns_(turns) {}
  [[nodiscard]] static std::size_t bytes(Turns turns) {
    return turns.segment_bytes * (window_segments + turns.count) + turns.count;
  }

  [[nodiscard]] bool exists() const { return base_ != nullptr; }
  void set_turns(Turns turns) { turns_ = turns; }
  [[nodiscard]] std::size_t turns() const { return turns_.count; }
  [[nodiscard]] std::atomic<std::uint8_t>& state(std::size_t turn) const {
    auto* states = base_ + turns_.segment_bytes * (window_segments + turns_.count);
    return reinterpret_cast<std::atomic<std::uint8_t>*>(states)[turn];
  }
  [[nodiscard]] bool is_in(std::size_t turn) const {
    return state(turn).load(std::memory_order_acquire) != 0;
  }
  // Where the segment lies that has been copied in.
  [[nodiscard]] std::byte* segment(std::size_t turn) const {
    bool window = (state(turn).load(std::memory_order_relaxed) & in_window) != 0;
    return window ? place(turn) : spill(turn);
  }
  void mark_done(std::size_t turn) const { state(turn).fetch_or(done, std::memory_order_release); }

  [[nodiscard]] std::byte* place(std::size_t turn) const {
    return base_ + turns_.segment_bytes * (turn % window_segments);
  }
  [[nodiscard]] std::byte* spill(std::size_t turn) const {
    return base_ + turns_.segment_bytes * (window_segments + turn);
  }

 private:
  std::byte* base_ = nullptr;
  Turns turns_;
};

// The owner's side. Not synchronised: copying in is the posting thread's, and taking the rest out
// is the business of who finishes the operation afterwards.
class Pipeline {
 public:
  Pipeline() = default;
  explicit Pipeline(const PipelineMemory& memory);

  [[nodiscard]] std::size_t next_turn() const { return next_; }
  // Copies the segment of the next turn in, from its place in the tensor; an empty one is passed
  // over. False when the window has no room for it: only with `spills` it then goes elsewhere.
  [[nodiscard]] bool copy_in(Buffer segment, bool spills);
  // Copies the result of a turn out, unless that has been done.
  void copy_out(std::size_t turn, Buffer segment);

 private:
  // What is in the window, so that it can be taken out: its turn and its place in the tensor.
  struct InWindow {
    std::size_t turn = 0;
    Buffer segment;  // empty: nothing
  };
  [[nodiscard]] bool make_room(InWindow& user);

  PipelineMemory memory_;
  std::size_t next_ = 0;
  std::array<InWindow, PipelineMemory::window_segments> window_;
};

}  // namespace lockstep::shm
