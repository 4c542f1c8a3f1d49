// The strategy of a --mesh on which several ranks compute one model together: tensor and context
// parallelism, pipelines, owners of experts.
#pragma once

#include "train/run_strategy.h"

#include <memory>

namespace lockstep::train {

// Collective. The task and the options outlive it.
[[nodiscard]] std::unique_ptr<RunStrategy> make_mesh_strategy(const Options& options, Task& task,
                                                              const Group& world);

}  // namespace lockstep::train
