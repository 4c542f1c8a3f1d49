// One rank of an injection: its actions, and where it records the errors that it gets.
#pragma once

#include "support/torch/injection.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep::test {

inline constexpr int most_injected_ranks = 5;

// Reports of the ranks to the test program, in shared memory because a rank can die at any moment.
struct InjectionBoard {
  struct Report {
    std::atomic<std::int64_t> at{0};  // time of the error; 0: no error yet
    std::atomic<bool> is_right{false};
    std::array<char, 1000> text{};
  };
  std::atomic<std::int64_t> deed{0};
  std::atomic<bool> is_over{false};  // ranks that loop forever may stop
  std::array<Report, most_injected_ranks> reports{};
};

// Joins the other ranks at the store of `place`, makes collective calls until one fails, and
// leaves.
void live_injected(const Injection& injection, int rank, const std::string& place,
                   InjectionBoard& board);

}  // namespace lockstep::test
