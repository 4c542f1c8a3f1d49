// What a handle costs one rank, counted where memory is taken and given back.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)

namespace lockstep {

// Bytes of this rank; of fully_shard(), padding included. Nothing is counted twice: where the shard
// is a range of a whole that stays (levels optimizer and gradients, one dtype), it is part of
// `whole`. The optimizer's state is the optimizer's and not here; of fp32 and Adam it is twice the
// bytes of the handle's parameters().
struct HandleMemory {
  std::int64_t shards = 0;          // this rank's part of divided parameters
  std::int64_t whole = 0;           // parameters that are there all the time
  std::int64_t gradients = 0;       // kept between backward() and the next step
  std::int64_t in_flight = 0;       // units and their gradients that are gathered or on their way
  std::int64_t peak_in_flight = 0;  // the most of it since reset_peak_memory()
  std::int64_t pooled = 0;          // free, kept for what is in flight next
  std::int64_t offloaded = 0;       // by ShardOptions::offload or offload_to_host; in nothing above

  // What the formulas of ShardLevel count, without the optimizer's state and units in flight.
  [[nodiscard]] std::int64_t kept() const { return shards + whole + gradients; }
  [[nodiscard]] std::int64_t total() const { return kept() + in_flight + pooled; }

  // Of several handles on one rank; the sum of their peaks is at least the peak of the sum.
  HandleMemory& operator+=(const HandleMemory& other) {
    shards += other.shards;
    whole += other.whole;
    gradients += other.gradients;
    in_flight += other.in_flight;
    peak_in_flight += other.peak_in_flight;
    pooled += other.pooled;
    offloaded += other.offloaded;
    return *this;
  }
};

}  // namespace lockstep

#pragma GCC visibility pop
