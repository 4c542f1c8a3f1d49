// The tasks of `lockstep train`. A program of one's own has its own (train/program.h).
#pragma once

#include <lockstep/train/task.h>

#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::train {

// In the order in which help lists them.
[[nodiscard]] std::vector<std::unique_ptr<Task>> known_tasks();

// The one of this name; BadInput for another, with the nearest.
[[nodiscard]] std::unique_ptr<Task> make_task(std::string_view name);

}  // namespace lockstep::train
