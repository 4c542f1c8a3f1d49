// Route: which of the ways of staging.h a call takes. Every rank finds the same for what peers must
// know, since counts are agreed on.
#pragma once

#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/posting.h"

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

// Shape::count of this call, from whichever buffer this rank has.
[[nodiscard]] std::int64_t count_of(const Posting& posting, int members);
// Whether a call of so many elements (count_of) is small enough to be carried.
[[nodiscard]] bool fits_slot(const Posting& posting, std::int64_t count, int members,
                             std::size_t carried_bytes);
[[nodiscard]] bool wants_pipeline(const Peers& peers, const Posting& posting);
// Whether Operation::fill() would copy the input of such a call of a group of `members`.
[[nodiscard]] bool copies_input(const Peers& peers, int members, std::size_t carried_bytes,
                                const Posting& posting);

}  // namespace lockstep::shm
