#include "apps/bench/collectives/contender.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lockstep::apps {
namespace {

// Longer than any turn; what takes longer hangs.
constexpr auto patience = std::chrono::minutes(3);

}  // namespace

void Contender::wait_until_ready() {
  for (int rank = 0; rank < ranks_.ranks(); ++rank)
    library_ = nlohmann::json::parse(ranks_.answer(rank, Deadline::after(patience))).at("library");
}

std::vector<double> Contender::run(const Turn& turn) {
  ranks_.tell(line_of(turn));
  std::vector<double> slowest(turn.calls, 0);
  for (int rank = 0; rank < ranks_.ranks(); ++rank) {
    auto answer = nlohmann::json::parse(ranks_.answer(rank, Deadline::after(patience)));
    std::vector<std::int64_t> times = answer.at("ns");
    for (int call = 0; call < turn.calls; ++call)
      slowest[call] = std::max(slowest[call], static_cast<double>(times.at(call)) / 1e9);
  }
  return slowest;
}

}  // namespace lockstep::apps
