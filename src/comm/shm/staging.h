// Staging: how buffers outside the arenas take part. Peers only ever touch arena memory; what
// happens around it is here.
//
// Now: the whole input is copied into an arena block at the post, and the output out of one after
// completion, by the owner. A strategy that moves pieces while peers work, or lets peers read by
// process_vm_readv, replaces this file.
#pragma once

#include "comm/shm/arena.h"
#include "comm/shm/location.h"
#include "comm/shm/peers.h"
#include "comm/shm/posting.h"

#include <cstddef>

namespace lockstep::shm {

// The buffers of one call of this rank, and where peers find them.
class Staged {
 public:
  Staged() = default;
  // Copies the input in where it must be. `reads`, `writes`: whether this call's input is read and
  // its output written at all on this rank. Throws BadInput when the arena is full.
  Staged(const Peers& peers, Buffer input, Buffer output, bool reads, bool writes);
  Staged(Staged&& other) noexcept { *this = std::move(other); }
  Staged& operator=(Staged&& other) noexcept;
  ~Staged() { release(); }

  [[nodiscard]] Location input() const { return input_location_; }
  [[nodiscard]] Location output() const { return output_location_; }

  // The operation is complete: the output goes where the caller wants it.
  void take_out();
  // Frees what this made; nobody may use it any more.
  void release();
  // Never frees it: peers may still write there.
  void pin();

  // Whether an operation posted later must wait until this one has been taken out: it touches the
  // same bytes, and the order of the lane alone would not do. `same_lane`: operations of the two
  // are executed in post order anyway.
  [[nodiscard]] bool must_precede(Buffer later_input, Buffer later_output, bool same_lane) const;

 private:
  Buffer input_;  // the caller's; empty when not used
  Buffer output_;
  Location input_location_;
  Location output_location_;
  Arena* arena_ = nullptr;
  std::byte* input_block_ = nullptr;   // in the arena, when staged
  std::byte* output_block_ = nullptr;  // may be the same
};

}  // namespace lockstep::shm
