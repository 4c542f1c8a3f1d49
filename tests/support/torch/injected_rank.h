// One rank of an injection: what it does, and where it writes what it was told.
#pragma once

#include "support/torch/injection.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep::test {

inline constexpr int most_injected_ranks = 5;

// What the ranks tell the test program, which may not trust a rank that dies to say anything.
struct InjectionBoard {
  struct Report {
    std::atomic<std::int64_t> at{0};  // of the error, 0: none yet
    std::atomic<bool> is_right{false};
    std::array<char, 1000> text{};
  };
  std::atomic<std::int64_t> deed{0};
  std::atomic<bool> is_over{false};  // who still computes for ever may stop
  std::array<Report, most_injected_ranks> reports{};
};

// Joins the others at the store of `place`, calls collectives until an error, and leaves.
void live_injected(const Injection& injection, int rank, const std::string& place,
                   InjectionBoard& board);

}  // namespace lockstep::test
