#include "apps/bench/side.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace lockstep::apps {

Side::Side(RankCommand command)
    : command_(std::move(command)), ranks_(RankProcesses::start_each(command_)) {}

void Side::wait_until_ready() {
  for (int rank = 0; rank < command_.ranks; ++rank) {
    bool fused = nlohmann::json::parse(ranks_.answer(rank)).at("fused");
    if (rank == 0) is_fused_ = fused;
  }
}

std::vector<double> Side::run(int steps) {
  ranks_.tell(std::to_string(steps));
  std::vector<double> slowest(steps, 0);
  for (int rank = 0; rank < command_.ranks; ++rank) {
    auto answer = nlohmann::json::parse(ranks_.answer(rank));
    std::vector<double> seconds = answer.at("seconds");
    for (int step = 0; step < steps; ++step)
      slowest[step] = std::max(slowest[step], seconds.at(step));
    if (rank == 0) losses_ = answer.at("losses").get<std::vector<double>>();
  }
  seconds_.insert(seconds_.end(), slowest.begin(), slowest.end());
  return slowest;
}

}  // namespace lockstep::apps
