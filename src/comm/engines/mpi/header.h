// The header of every message between two ranks of the engine mpi.
//
// One MPI message carries the header and, if the content is short, the content behind it. A longer
// content follows as a separate message under `tag`; the receiver takes that message when it knows
// its destination buffer. All ranks of a world run the same program on the same architecture, so
// numbers are sent in native byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace lockstep::mpi {

enum class Kind : std::uint32_t {
  collective,  // a piece of a collective's round
  message,     // the same of send() and recv()
  failed,      // the group is dead: why the sender closed it
  left,        // the sender has completed its calls and leaves the group
  goodbye      // the sender's process needs no other any more
};

struct Header {
  std::uint64_t group = 0;        // fingerprint of its name
  std::uint64_t number = 0;       // of the collective in its group, or of the message in its pair
  std::uint64_t fingerprint = 0;  // of the call
  std::uint64_t bytes = 0;        // of the content
  std::uint64_t awaited = 0;      // in return, in an all_to_all with counts
  Kind kind = Kind::collective;
  std::uint32_t round = 0;
  std::int32_t tag = 0;  // 0: the content follows at once
  std::uint32_t unused = 0;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 56);

// Contents up to this size travel with the header.
inline constexpr std::size_t eager_limit = 4096;
inline constexpr std::size_t envelope_bytes = sizeof(Header) + eager_limit;

}  // namespace lockstep::mpi
