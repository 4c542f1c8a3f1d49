#include "optim/turns.h"

#include "base/check.h"
#include "optim/shared_update.h"
#include "optim/state_tensors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::optim {

Turns prepared_turns(std::vector<UpdateEntry> entries, const GroupStep& step) {
  check_state(entries, step);
  Turns turns;
  for (UpdateEntry& entry : entries) {
    bool is_divided = step.update.shared && step.update.shared->divides(entry);
    (is_divided ? turns.divided : turns.whole).push_back(std::move(entry));
  }
  if (step.update.shared)
    for (const UpdateEntry& entry : turns.whole) step.update.shared->keep_own(entry, step);
  if (step.update.shared && !step.update.shared->prepare(turns.divided, step)) {
    std::ranges::move(turns.divided, std::back_inserter(turns.whole));
    std::ranges::sort(turns.whole, {}, &UpdateEntry::number);
    turns.divided.clear();
  }
  if (!turns.whole.empty()) prepare_state(turns.whole, step.update.state, step.update.memory.get());
  return turns;
}

void take_turns(Turns& turns, const GroupStep& step, const std::string& rule,
                const std::function<void(std::vector<UpdateEntry>&)>& update) {
  if (step.update.shared) step.update.shared->run(turns.divided, step, rule, update);
  in_batches(turns.whole, step.update.memory.get(), update);
}

UpdateOptions checked(UpdateOptions update) {
  check(!update.shared || !update.memory,
        "UpdateOptions: the state lies in `memory` or is shared by ranks (`shared`), not both");
  return update;
}

}  // namespace lockstep::optim
