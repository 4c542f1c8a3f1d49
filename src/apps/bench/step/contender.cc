#include "apps/bench/step/contender.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::apps {

std::string title_of(const StepContenderName& name) {
  return (name.system == "pytorch" ? "PyTorch " : "ours ") + name.mode;
}

StepContender::StepContender(StepContenderName name, RankCommand command)
    : name_(std::move(name)), count_(command.ranks), ranks_(RankProcesses::start_each(command)) {}

void StepContender::wait_until_ready(bool fused) {
  for (int rank = 0; rank < count_; ++rank) {
    bool found = nlohmann::json::parse(ranks_.answer(rank)).at("fused");
    if (found != fused)
      throw Error(formatted("{}: expected the {} AdamW, found the other", title_of(name_),
                            fused ? "fused" : "default"));
  }
}

void StepContender::take_turn(int steps) {
  ranks_.tell(std::to_string(steps));
  std::vector<double> slowest(static_cast<std::size_t>(steps), 0);
  for (int rank = 0; rank < count_; ++rank) {
    auto answer = nlohmann::json::parse(ranks_.answer(rank));
    std::vector<double> seconds = answer.at("seconds");
    for (std::size_t step = 0; step < slowest.size(); ++step)
      slowest[step] = std::max(slowest[step], seconds.at(step));
    bytes_ = std::max(bytes_, answer.at("bytes").get<std::int64_t>());
    if (rank == 0) losses_ = answer.at("losses").get<std::vector<double>>();
  }
  by_round_.push_back(std::accumulate(slowest.begin(), slowest.end(), 0.0) / steps);
  seconds_.insert(seconds_.end(), slowest.begin(), slowest.end());
}

void StepContender::forget() {
  seconds_.clear();
  by_round_.clear();
}

}  // namespace lockstep::apps
