// Seeds for independent random streams of one run.
#pragma once

#include "base/fingerprint.h"

#include <cstdint>

namespace lockstep::train {

// The seed of stream number `stream` of a run with this seed: neighbouring numbers give unrelated
// streams.
[[nodiscard]] constexpr std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream) {
  return mix_bits(static_cast<std::uint64_t>(seed) * 0x9e3779b97f4a7c15u +
                  static_cast<std::uint64_t>(stream));
}

// Streams from 0 belong to steps (the data they draw), those below to ranks (dropout).
[[nodiscard]] constexpr std::int64_t seed_stream_of_rank(int rank) {
  return -1 - static_cast<std::int64_t>(rank);
}

}  // namespace lockstep::train
