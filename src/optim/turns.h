// In which order a step goes through the parameters of a group, and by which of the ways.
#pragma once

#include "optim/update_entry.h"

#include <functional>
#include <string>
#include <vector>

namespace lockstep::optim {

// Entries in the order of their parameters, by who updates them.
struct Turns {
  std::vector<UpdateEntry> divided;  // the ranks of UpdateOptions::shared, each its share
  std::vector<UpdateEntry> whole;    // this rank
};

// Collective where entries are divided. Their state is set up, and brought to where the step wants
// it; InvalidArgument, before anything is changed, for one that cannot be.
[[nodiscard]] Turns prepared_turns(std::vector<UpdateEntry> entries, const GroupStep& step);

// The same. `rule` is what ranks must agree on: the hyperparameters in words. Calls `update` for
// some entries at a time.
void take_turns(Turns& turns, const GroupStep& step, const std::string& rule,
                const std::function<void(std::vector<UpdateEntry>&)>& update);

// Of an optimizer's constructor: the options, if they can be. InvalidArgument otherwise.
[[nodiscard]] UpdateOptions checked(UpdateOptions update);

}  // namespace lockstep::optim
