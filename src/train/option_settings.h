// The trainer's own options as settings, and what they must be together.
#pragma once

#include <lockstep/train/options.h>
#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

namespace lockstep::train {

// Adds them, bound to `options`; those about samples for tasks that make some.
void declare_options(Settings& settings, Options& options, const Task& task);

// What no single option can be blamed for: batch and ranks, mesh and shard; and Task::check().
// BadInput in one line.
void check_run(const Options& options, const Task& task, int ranks);

}  // namespace lockstep::train
