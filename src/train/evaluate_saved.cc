#include "train/evaluate_saved.h"

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"
#include "train/configuration.h"
#include "train/evaluator.h"
#include "train/progress.h"
#include "train/run_description.h"

#include <lockstep/comm/together.h>
#include <lockstep/train/saved_model.h>
#include <lockstep/train/task.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <numbers>

namespace lockstep::train {
namespace {

// Sets the paths of the run's own data from the config.toml next to the model.
void find_own_data(const SavedModel& saved, bool is_needed) {
  Settings own(saved.task->name());
  saved.task->declare(own);
  const std::map<std::string, std::string> paths = paths_of_run(saved);
  for (const Settings::Entry& entry : own.entries()) {
    if (!entry.is_path) continue;
    auto found = paths.find(entry.name);
    const bool is_known = found != paths.end();
    std::string path = is_known ? found->second : Settings::text_of(entry);
    own.set(entry.name, path);
    if (!is_needed || (is_known && path.empty())) continue;
    check_input(!path.empty(), "{}: no config.toml beside it names its data: name some with --data",
                saved.file.string());
    check_input(std::filesystem::exists(path),
                "{}: the config.toml of its run names the data {}, which is not there from this "
                "folder: name it with --data",
                saved.file.string(), path);
  }
}

std::string line_of(const SavedModel& saved, const Task& task, const Evaluation& found) {
  std::string line = "val_loss=" + loss_text(found.loss, 5);
  if (task.has_accuracy()) line = formatted("accuracy={:.4f} ", found.accuracy) + line;
  if (saved.tokenizer)
    line += formatted(" bits_per_{}={}", saved.tokenizer->unit(),
                      loss_text(found.loss / std::numbers::ln2, 5));
  for (const auto& [name, value] : task.results()) line += formatted(" {}={}", name, value);
  return line + formatted(" step={} model={}", saved.step, saved.file.string());
}

void check_fingerprint(const SavedModel& saved) {
  const std::string& before = described(saved.metadata, "data_fingerprint");
  const std::string now = saved.task->data_fingerprint();
  check_input(before == now,
              "{}: expected the data that its run was given ({}), found other data ({}) in {}: to "
              "measure all of it, name it with --data",
              saved.file.string(), visible(before), now,
              Configuration(*saved.task, saved.task->defaults()).data_text());
}

}  // namespace

SavedEvaluation evaluate_saved(const EvaluateOptions& options, Group world,
                               const std::function<void(double)>& tell) {
  std::optional<SavedModel> saved;
  std::shared_ptr<torch::nn::Module> module;
  together(world, [&] {
    saved = read_model(options.run);
    Task& task = *saved->task;
    find_own_data(*saved, options.data.empty());
    task.load_validation(task.defaults(), world, options.data);
    if (options.data.empty()) check_fingerprint(*saved);
    module = task.make_model();
    load_into(*module, *saved);
    module->to(options.device);
  });
  Task* task = saved->task.get();
  Evaluator evaluator(*task, module, world,
                      {.batches = options.batches, .device = options.device, .tell = tell});
  Evaluation found = evaluator.chosen();
  SavedEvaluation result{.val_loss = found.loss, .line = line_of(*saved, *task, found)};
  if (evaluator.is_partial()) result.line += formatted(" eval_batches={}", options.batches);
  if (task->has_accuracy()) result.accuracy = found.accuracy;
  return result;
}

}  // namespace lockstep::train
