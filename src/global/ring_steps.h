// The steps of ring attention (Liu, Zaharia and Abbeel, arXiv:2310.01889): which keys meet which
// queries on a rank when. Pure arithmetic.
//
// Queries, keys and values are cut along the sequence in the same way. Keys and values go round the
// ring, from each rank to the next one: in step s a rank has those of rank (rank - s) mod n. Under
// a causal mask a query sees the keys up to its own place, so with a plain cut the first rank has
// little to do and the last one the most. In zigzag order all ranks have as much.
#pragma once

#include <lockstep/global/placement.h>

#include <cstdint>
#include <vector>

namespace lockstep::global {

// The rank's queries from `first_query` on see the first `keys` keys of `source`, in the order in
// which ranks have them: all of these, or as a causal mask says, which begins at both.
struct RingStep {
  int source = 0;
  std::int64_t first_query = 0;
  std::int64_t queries = 0;  // from there on
  std::int64_t keys = 0;     // 0: none
  bool is_causal = false;

  // Products of a query and a key.
  [[nodiscard]] std::int64_t scores() const {
    return is_causal ? queries * (queries + 1) / 2 : queries * keys;
  }
};

// One for each rank, its own keys first. `queries` and `keys` are the lengths of the whole; equal
// where it is causal.
[[nodiscard]] std::vector<RingStep> ring_steps(int ranks, int rank, Placement cut, bool is_causal,
                                               std::int64_t queries, std::int64_t keys);

}  // namespace lockstep::global
