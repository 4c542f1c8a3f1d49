// The tasks of `lockstep train`. Other programs define their own tasks (train/program.h).
#pragma once

#include <lockstep/train/task.h>

#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::train {

// Returns all tasks in the order of --help.
[[nodiscard]] std::vector<std::unique_ptr<Task>> known_tasks();

// Returns the task of this name. Throws BadInput for an unknown name and suggests the nearest one.
[[nodiscard]] std::unique_ptr<Task> make_task(std::string_view name);

}  // namespace lockstep::train
