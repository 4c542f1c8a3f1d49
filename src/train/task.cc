#include "train/task.h"

#include "train/gpt_task.h"
#include "train/mlp_task.h"
#include "train/mnist_task.h"

#include <lockstep/base/error.h>

namespace lockstep::train {

std::unique_ptr<Task> make_task(const Options& options, const Group& group) {
  if (options.task == "gpt") return std::make_unique<GptTask>(options, group);
  if (options.task == "mnist") return std::make_unique<MnistTask>(options, group);
  if (options.task == "mlp") return std::make_unique<MlpTask>(options, group);
  throw BadInput("no task '" + options.task + "': expected one of: " + std::string(task_names()));
}

}  // namespace lockstep::train
