// How a row of `lockstep bench memory` is printed.
#pragma once

#include "apps/bench/goal.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

// Of the ranks that have most.
struct MemoryRow {
  std::string kind;  // counters, pss, pss kept, node-shared, limited
  std::string model;
  std::int64_t parameters = 0;
  std::string mode;
  std::string dtype;
  int ranks = 1;
  std::int64_t bytes = 0;       // found
  std::int64_t units = 0;       // in flight and pooled, after a step
  std::int64_t peak_units = 0;  // in flight, in a step
  std::int64_t limit = 0;       // of a rank; 0: none
  double expected = 0;          // bytes
  std::vector<double> seconds;  // of the steps
  std::optional<Goal> goal;

  [[nodiscard]] double ratio() const { return static_cast<double>(bytes) / expected; }
};

// A ratio that is 1.00 when it is printed.
inline constexpr Goal exactly_one{.must = 1.005, .at_least = false};

void print_heading();
void print(const MemoryRow& row, bool json);

}  // namespace lockstep::apps
