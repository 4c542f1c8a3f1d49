// Seeds for independent random streams of one run.
#pragma once

#include <cstdint>

namespace lockstep::train {

// The seed of stream number `stream` of a run with this seed: SplitMix64's finaliser (Steele, Lea
// and Flood, OOPSLA 2014), so that neighbouring numbers give unrelated streams.
[[nodiscard]] constexpr std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream) {
  std::uint64_t x =
      static_cast<std::uint64_t>(seed) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(stream);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Streams from 0 belong to steps (the data they draw), those below to ranks (dropout).
[[nodiscard]] constexpr std::int64_t stream_of_rank(int rank) {
  return -1 - static_cast<std::int64_t>(rank);
}

}  // namespace lockstep::train
