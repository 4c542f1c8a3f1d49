// How a call is carried out by messages of MPI: pure arithmetic, the same on every rank but for the
// rank's number.
//
// A plan is one round or two. In a round a rank copies, sends pieces and receives pieces, all at
// once and in any order, and when these are done it may sum: one contribution a rank, in the order
// of the tree (kernels/combine.h). So the bits are those of the engines local and shm. Every rank
// sends directly to every other: a round costs one latency, and what a rank sends in all is the
// least that the operation needs (2 (n-1)/n of the tensor for an all_reduce; reduce_scatter then
// all_gather, R. Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004). Small
// all_reduces, reduces and broadcasts go whole, in one round. Every rank hears from the one before
// it, if only by a message without a byte, so that calls that differ meet.
#pragma once

#include <lockstep/comm/call.h>

#include <cstdint>
#include <optional>
#include <span>
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

struct Plan {
  std::vector<Round> rounds;
  std::int64_t scratch_bytes = 0;
};

// A call as the arithmetic needs it. Counts are elements; none: even parts.
struct Exchange {
  Collective collective = Collective::barrier;
  int root = -1;  // of a rooted collective; the peer of a message
  int rank = 0;
  int size = 1;
  std::int64_t element_bytes = 1;
  std::int64_t elements = 0;  // of the tensor whose size the ranks agree on (PostedCall::elements)
  std::span<const std::int64_t> input_counts;
  std::span<const std::int64_t> output_counts;
  bool in_own_part = false;  // the smaller operand lies at its place in the larger one
};

// Up to this many bytes an all_reduce, reduce or broadcast takes one round.
inline constexpr std::int64_t whole_bytes = 16 << 10;

[[nodiscard]] Plan make_plan(const Exchange& exchange);

}  // namespace lockstep::mpi
