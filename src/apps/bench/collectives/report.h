// How what was measured is printed: a table for people, or one JSON object a line.
#pragma once

#include "apps/bench/collectives/measure.h"

#include <vector>

namespace lockstep::apps {

// What the whole run stands on.
struct MachineFigures {
  int cores = 1;
  double bytes_per_second = 0;      // of MemoryMix, at the start
  double core_to_core_seconds = 0;  // 0 with one core
};
[[nodiscard]] MachineFigures measure_machine();

void print_machine(const MachineFigures& machine);
// A row's table: seconds and bandwidths of each system, and its ratio to ours.
void print_row(const MeasuredRow& measured);
// Each ratio of medians, with the least and most of the rounds, and then what became of the goals.
void print_ratios(const std::vector<MeasuredRow>& rows);
// One object for each system and kind of memory.
void print_json(const MeasuredRow& measured, const MachineFigures& machine);

}  // namespace lockstep::apps
