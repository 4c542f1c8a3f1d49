// Staging: how the buffers of one call take part. Peers touch only what lies in an arena;
// everything else is copied:
//
//   carried   a small operation: the input rides in the slot, and this rank computes its own output
//   staged    the input is copied into an arena block at the post, and the output out of one after
//             completion, by the owner; the naive way, which works everywhere
//   direct    the descriptor says where the buffer lies, and peers read and write it there
#pragma once

#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/data_path.h"
#include "comm/engines/shm/location.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/posting.h"

#include <cstddef>

namespace lockstep::shm {

// The buffers of one call of this rank, and where peers find them.
class Staged {
 public:
  Staged() = default;
  // Of a placed call: copies the input in where it must be. Throws BadInput when the arena is full.
  Staged(const Peers& peers, Buffer input, Buffer output, const DataPath& path);
  // From now on those of a carried call: nothing is copied here.
  void carry(Buffer input, Buffer output, const DataPath& path);
  Staged(Staged&& other) noexcept { *this = std::move(other); }
  Staged& operator=(Staged&& other) noexcept;
  ~Staged() { release(); }

  [[nodiscard]] Location input() const { return input_location_; }
  [[nodiscard]] Location output() const { return output_location_; }
  // The caller's own; empty where it is not used.
  [[nodiscard]] Buffer own_input() const { return input_; }
  [[nodiscard]] Buffer own_output() const { return output_; }
  [[nodiscard]] bool keeps_own_part() const { return keeps_own_part_; }

  // The caller's own output, where peers write to it.
  [[nodiscard]] Buffer exposed() const {
    return output_location_.is_somewhere() && output_block_ == nullptr ? output_ : Buffer();
  }
  // It lies in memory that ranks share: another one's arena, or a block that several hold.
  [[nodiscard]] bool is_shared(const Peers& peers) const {
    return output_location_.rank != peers.rank() || peers.arena()->is_held(output_.data);
  }

  // The operation is complete: the output goes where the caller wants it.
  void copy_out();
  // Frees what this made; nobody may use it any more.
  void release();
  // Never frees it: peers may still write there.
  void leak();

  // Whether an operation posted later must wait until this one has been taken out: it touches the
  // same bytes, and the order of the channel alone would not do. `same_channel`: operations of the
  // two are executed in post order anyway. `is_copied`: the later one's input is copied at its
  // post.
  struct Later {
    Buffer input;
    Buffer output;
    bool same_channel;
    bool is_copied;
  };
  [[nodiscard]] bool must_precede(const Later& later) const;

 private:
  // What the owner delivers itself, after peers have gone on.
  [[nodiscard]] bool delivers_late() const { return output_block_ != nullptr || carried_; }

  Buffer input_;  // the caller's; empty when not used
  Buffer output_;
  Location input_location_;
  Location output_location_;
  bool carried_ = false;
  bool keeps_own_part_ = false;  // of the input of a carried call, which is copied but for that
  Arena* arena_ = nullptr;
  std::byte* input_block_ = nullptr;   // in the arena, when staged
  std::byte* output_block_ = nullptr;  // may be the same
};

}  // namespace lockstep::shm
