// A run on parameter servers (--strategy ps): the first ranks are workers, which train as all ranks
// do without servers, and the last ones keep the parameters and their optimizer.
//
// Checkpoints are those of any run: the servers write their rows of the parameters, as ranks do
// that have divided a model, and worker 0 the rest. So a run may go on with other numbers of
// servers and workers, or without servers.
#pragma once

#include "train/run_strategy.h"

#include <lockstep/comm/group.h>
#include <lockstep/train/options.h>
#include <lockstep/train/task.h>
#include <lockstep/train/trainer.h>

#include <functional>

namespace lockstep::train {

// Collective over `world`, whose last ranks become servers. `train_as` is what a worker does, with
// its strategy, in the group of all workers. All ranks return the report that it gives.
[[nodiscard]] Report run_on_servers(
    Task& task, const Options& options, Group world,
    const std::function<Report(Group workers, RunStrategy& strategy)>& train_as);

}  // namespace lockstep::train
