#include <lockstep/plan/schedule.h>

#include "base/format.h"

namespace lockstep::plan {

std::string text_of(const Action& action) {
  return formatted("{}{}{}", action.stage, static_cast<char>(action.compute), action.micro_batch);
}

std::vector<int> rank_of_stages(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<std::size_t>(schedule.stages));
  for (int rank = 0; rank < schedule.rank_count(); ++rank)
    for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)])
      ranks[static_cast<std::size_t>(action.stage)] = rank;
  return ranks;
}

// A forward only depends on forwards of its own micro-batch, so any micro-batch can be left out.
Schedule forward_only(const Schedule& schedule, int micro_batches) {
  Schedule forwards = schedule;
  forwards.micro_batches = micro_batches;
  for (std::vector<Action>& actions : forwards.ranks)
    std::erase_if(actions, [&](const Action& a) {
      return a.compute != Compute::forward || a.micro_batch >= micro_batches;
    });
  return forwards;
}

Schedule forward_only(const Schedule& schedule) {
  return forward_only(schedule, schedule.micro_batches);
}

}  // namespace lockstep::plan
