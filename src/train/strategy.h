// By which strategy the ranks train one model: the loop is the same for all.
#pragma once

#include "train/task.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/options.h>

#include <torch/optim/optimizer.h>

#include <cstdint>

namespace lockstep::train {

// Collective: the handle that the options ask for, on the task's model.
[[nodiscard]] Handle make_handle(const Options& options, const Task& task, const Group& group);

// Bytes of parameters, gradients and optimizer state that this rank holds now.
[[nodiscard]] std::int64_t bytes_held(const Handle& handle,
                                      const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::train
