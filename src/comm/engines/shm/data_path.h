// The data path of a call: which of the ways of staging.h it takes. Chosen once a post; every rank
// finds the same for what peers must know, since counts are agreed on.
#pragma once

#include "comm/engines/shm/location.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/posting.h"

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

struct DataPath {
  enum class Kind : std::uint8_t {
    carried,  // small: the input rides in the slot
    placed    // each buffer is accessed where it lies, or staged in a block of the arena
  };
  Kind kind = Kind::placed;
  std::int64_t count = 0;  // Shape::count, from whichever buffer this rank has
  bool reads = false;  // whether this call's input is read, and its output written, on this rank
  bool writes = false;
  // Placed: where peers access a buffer; nowhere: it is staged. Nowhere for one that is not used.
  Location input;
  Location output;

  // Whether the input has been copied when the call is posted.
  [[nodiscard]] bool copies_input() const {
    return reads && !(kind == Kind::placed && input.is_somewhere());
  }
};

// Of a call on a channel of `members`, this rank being number `me`, whose slots carry so many
// bytes.
[[nodiscard]] DataPath choose_path(const Peers& peers, const Posting& posting, int members, int me,
                                   std::size_t carried_bytes);

}  // namespace lockstep::shm
