// posting_order(): the order in which all ranks of a pipeline post their operations.
//
// GPUs need a common order. An operation of several ranks, once launched, occupies a GPU until its
// peers have launched it, too; if two ranks launch two operations in different orders and their
// GPUs have no room for both, they wait for each other forever. So every rank computes this order
// from the schedule and posts in it: the operations inside an action (such as an all_gather of a
// sharded stage) at the action's place, and the message with its result directly after it. The
// receiving rank posts its receive there, too, between its own actions.
//
// Why no rank waits forever: before an operation, a rank waits, on the host or on a stream, only
// for operations of earlier places. Take the earliest operation that is not complete. All its ranks
// post it, since whatever they wait for before is complete; and GPUs launch operations in the order
// of posts, so that it has before it only complete operations, and computations, which end.
#pragma once

#include <lockstep/plan/schedule.h>

#include <vector>

namespace lockstep::plan {

// Returns all actions of all ranks, each after those that it depends on, and those of a rank in its
// own order: the order in which they end in the simulation with the default times. A rank then
// posts its receives before it begins an action during which, by the simulation, the result
// arrives. Precondition: the schedule can be executed, or is the forwards of one that can be.
[[nodiscard]] std::vector<Action> posting_order(const Schedule& schedule);

}  // namespace lockstep::plan
