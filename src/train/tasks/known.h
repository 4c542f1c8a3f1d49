// The tasks of `lockstep train`. Other programs define their own tasks (train/program.h).
#pragma once

#include <lockstep/train/settings.h>
#include <lockstep/train/task.h>

#include <memory>
#include <string_view>
#include <vector>

namespace lockstep::train {

// Returns all tasks in the order of --help.
[[nodiscard]] std::vector<std::unique_ptr<Task>> known_tasks();

// Returns the task of this name. Throws BadInput for an unknown name and suggests the nearest one.
[[nodiscard]] std::unique_ptr<Task> make_task(std::string_view name);

// A whole number of at least 1 that determines the model's parameters.
[[nodiscard]] inline Setting shape_size(const char* name, const char* help, double most) {
  return {.name = name, .help = help, .least = 1, .most = most, .scope = Scope::shape};
}

// A number of at least 0 that the model keeps.
[[nodiscard]] inline Setting model_number(const char* name, const char* help, double most) {
  return {.name = name, .help = help, .most = most, .scope = Scope::model};
}

}  // namespace lockstep::train
