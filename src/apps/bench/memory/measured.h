// What the ranks of `lockstep bench memory` answer.
#pragma once

#include "apps/bench/memory/resident.h"
#include "apps/bench/rank_processes.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

// Of one rank (rank.h).
struct RankMemory {
  std::int64_t parameters = 0, kept = 0, units = 0, peak_units = 0;
  Resident before, after, idle;
  std::vector<double> seconds;

  // What the model has cost.
  [[nodiscard]] std::int64_t growth() const { return after.pss - before.pss; }
  // The same without gradients.
  [[nodiscard]] std::int64_t idle_growth() const { return idle.pss - before.pss; }
};
[[nodiscard]] RankMemory rank_memory_of(const nlohmann::json& answer);

// Rank processes of `lockstep bench memory`, ready to be told what to measure.
class MemoryRanks {
 public:
  explicit MemoryRanks(const RankCommand& command);
  // One a rank. Throws Error when one ended instead.
  [[nodiscard]] std::vector<RankMemory> measure(const std::string& mode, const std::string& dtype,
                                                int steps, const std::string& build = "whole");

 private:
  RankProcesses processes_;
};

}  // namespace lockstep::apps
