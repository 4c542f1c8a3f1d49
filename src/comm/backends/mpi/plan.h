// A plan executes a call by MPI messages. Plans are pure arithmetic; plans of different ranks
// differ only by the rank number.
//
// A plan has one or two rounds. In a round, a rank copies, sends pieces and receives pieces, all at
// once and in any order. When these are done, it may sum one contribution per rank, in the order of
// the tree (kernels/combine.h), so results are bitwise equal to those of the backends local and
// shm. Every rank sends directly to every other rank: a round costs one latency, and a rank sends
// no more bytes in total than the operation needs (2 (n-1)/n of the tensor for an all_reduce;
// reduce_scatter then all_gather, R. Rabenseifner, Optimization of Collective Reduction Operations,
// ICCS 2004). Small all_reduces, reduces and broadcasts send the whole tensor in one round. Every
// rank receives a message from the rank before it, even if the message is empty, so that calls that
// differ are detected.
#pragma once

#include "comm/call/record.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::mpi {

enum class Memory : std::uint8_t { input, output, scratch };

struct Piece {
  Memory memory = Memory::input;
  std::int64_t begin = 0;  // bytes
  std::int64_t bytes = 0;
};

struct Transfer {
  int peer = 0;
  Piece piece;
};

struct Copy {
  Piece from;
  Piece to;
};

struct Sum {
  std::vector<Piece> from;  // one a rank
  Piece to;                 // may be one of them
};

struct Round {
  std::vector<Copy> copies;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::optional<Sum> sum;
};

struct MoveSchedule {
  std::vector<Round> rounds;
  std::int64_t scratch_bytes = 0;
};

// An all_reduce, reduce or broadcast of at most this many bytes takes one round.
inline constexpr std::int64_t whole_bytes = 16 << 10;

// `in_own_part`: the smaller operand is this rank's part of the larger one.
[[nodiscard]] MoveSchedule make_move_schedule(const CallRecord& call, int rank, int size,
                                              bool in_own_part);

}  // namespace lockstep::mpi
