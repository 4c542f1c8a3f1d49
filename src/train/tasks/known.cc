#include "train/tasks/known.h"

#include "base/text.h"
#include "train/tasks/images.h"
#include "train/tasks/language_models.h"
#include "train/tasks/mlp.h"

#include <lockstep/base/error.h>

#include <string>

namespace lockstep::train {

std::vector<std::unique_ptr<Task>> known_tasks() {
  std::vector<std::unique_ptr<Task>> tasks;
  tasks.push_back(std::make_unique<GptTask>());
  tasks.push_back(std::make_unique<LlamaTask>());
  tasks.push_back(std::make_unique<MoeTask>());
  tasks.push_back(std::make_unique<MnistTask>());
  tasks.push_back(std::make_unique<CifarTask>());
  tasks.push_back(std::make_unique<MlpTask>());
  return tasks;
}

std::unique_ptr<Task> make_task(std::string_view name) {
  std::vector<std::string> names;
  for (std::unique_ptr<Task>& task : known_tasks()) {
    names.push_back(task->name());
    if (names.back() == name) return std::move(task);
  }
  std::vector<std::string_view> known(names.begin(), names.end());
  throw BadInput(unknown_name("task", name, known));
}

}  // namespace lockstep::train
