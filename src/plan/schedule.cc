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

Schedule forward_only(const Schedule& schedule) {
  Schedule forwards = schedule;
  for (std::vector<Action>& actions : forwards.ranks)
    std::erase_if(actions, [](const Action& a) { return a.compute != Compute::forward; });
  return forwards;
}

}  // namespace lockstep::plan
