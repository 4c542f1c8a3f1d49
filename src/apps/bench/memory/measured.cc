#include "apps/bench/memory/measured.h"

#include <lockstep/base/format.h>

namespace lockstep::apps {
namespace {

Resident resident_of(const nlohmann::json& part) {
  return {part.at("pss"), part.at("anonymous"), part.at("shared"), part.at("files")};
}

}  // namespace

RankMemory rank_memory_of(const nlohmann::json& answer) {
  return {.parameters = answer.at("parameters"),
          .kept = answer.at("kept"),
          .units = answer.at("units"),
          .peak_units = answer.at("peak_units"),
          .before = resident_of(answer.at("before")),
          .after = resident_of(answer.at("after")),
          .idle = resident_of(answer.at("idle")),
          .seconds = answer.at("seconds").get<std::vector<double>>()};
}

MemoryRanks::MemoryRanks(const RankCommand& command)
    : processes_(RankProcesses::start_each(command)) {
  for (int rank = 0; rank < processes_.ranks(); ++rank) (void)processes_.answer(rank);  // ready
}

std::vector<RankMemory> MemoryRanks::measure(const std::string& mode, const std::string& dtype,
                                             int steps, const std::string& build) {
  processes_.tell(formatted("{} {} {} {}", mode, dtype, steps, build));
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < processes_.ranks(); ++rank)
    ranks.push_back(rank_memory_of(nlohmann::json::parse(processes_.answer(rank))));
  return ranks;
}

}  // namespace lockstep::apps
