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
  // Small: the input rides in the slot. Else each buffer is accessed where it lies, or staged in a
  // block of the arena.
  bool is_carried = false;
  // Carried: of what each rank gets a part of, this rank's own is not passed on but taken from the
  // input when the call is carried out.
  bool keeps_own_part = false;
  std::int64_t count = 0;  // Shape::count, from whichever buffer this rank has
  bool reads = false;  // whether this call's input is read, and its output written, on this rank
  bool writes = false;
  // Where peers access a buffer; nowhere: it is staged. Carried: where an input that is moved lies
  // in an arena, if it does. Nowhere for a buffer that is not used.
  Location input;
  Location output;

  // Whether the input, or some of it, has been copied when the call is posted.
  [[nodiscard]] bool copies_input() const { return reads && (is_carried || !input.is_somewhere()); }
};

// Of a call on a channel of `members`, this rank being number `me`, whose slots carry so many
// bytes.
[[nodiscard]] DataPath choose_path(const Peers& peers, const Posting& posting, int members, int me,
                                   std::size_t carried_bytes);

}  // namespace lockstep::shm
