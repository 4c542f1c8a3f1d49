#include "global/ring_steps.h"

#include "global/spec.h"

namespace lockstep::global {
namespace {

// A part of the sequence that a rank has, with its index among all parts.
struct Piece {
  int place = 0;
  std::int64_t length = 0;
};

std::vector<Piece> pieces_of(std::int64_t length, Placement cut, int ranks, int rank) {
  const Ranges ranges = ranges_of(length, cut, ranks, rank);
  std::vector<Piece> pieces = {{rank, ranges[0].length()}};
  if (cut.is_zigzag()) pieces.push_back({2 * ranks - 1 - rank, ranges[1].length()});
  return pieces;
}

}  // namespace

std::vector<RingStep> ring_steps(int ranks, int rank, Placement cut, bool is_causal,
                                 std::int64_t queries, std::int64_t keys) {
  const std::vector<Piece> own = pieces_of(queries, cut, ranks, rank);
  std::vector<RingStep> steps;
  for (int s = 0; s < ranks; ++s) {
    RingStep step{.source = (rank - s + ranks) % ranks, .is_causal = is_causal && s == 0};
    const std::vector<Piece> theirs = pieces_of(keys, cut, ranks, step.source);
    // Parts are in sequence order, so the visible region is a rectangle: the last queries and the
    // first keys.
    auto sees = [&](const Piece& query, const Piece& key) {
      return !is_causal || s == 0 || key.place < query.place;
    };
    for (const Piece& piece : own)
      (sees(piece, theirs.front()) ? step.queries : step.first_query) += piece.length;
    for (const Piece& piece : theirs)
      if (sees(own.back(), piece)) step.keys += piece.length;
    if (step.queries == 0) step.keys = 0;
    steps.push_back(step);
  }
  return steps;
}

}  // namespace lockstep::global
