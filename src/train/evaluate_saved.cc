#include <lockstep/train/evaluate_saved.h>

#include "base/check.h"
#include "base/format.h"
#include "base/visible.h"
#include "train/evaluator.h"
#include "train/model_description.h"
#include "train/task.h"

#include <lockstep/comm/together.h>
#include <lockstep/train/saved_model.h>

#include <cmath>
#include <filesystem>
#include <numbers>

namespace lockstep::train {
namespace {

void check_own_data(const SavedModel& saved) {
  if (saved.options.task == "mlp") return;
  const std::string& data = saved.options.data;
  check_input(!data.empty(), "{}: no config.toml beside it names its data: name some with --data",
              saved.file.string());
  check_input(std::filesystem::exists(data),
              "{}: the config.toml of its run names the data {}, which is not there from this "
              "folder: name it with --data",
              saved.file.string(), data);
}

std::string line_of(const SavedModel& saved, const Task& task, const Evaluation& found) {
  std::string line = formatted("val_loss={:.4f}", found.loss);
  if (task.has_accuracy()) line = formatted("accuracy={:.4f} ", found.accuracy) + line;
  if (saved.vocabulary)
    line += formatted(" {}={:.4f}",
                      saved.vocabulary->is_bytes() ? "bits_per_byte" : "bits_per_character",
                      found.loss / std::numbers::ln2);
  for (const auto& [name, value] : task.results()) line += formatted(" {}={}", name, value);
  return line + formatted(" step={} model={}", saved.step, saved.file.string());
}

}  // namespace

SavedEvaluation evaluate_saved(const EvaluateOptions& options, Group world,
                               const std::function<void(double)>& tell) {
  std::optional<SavedModel> saved;
  std::unique_ptr<Task> task;
  together(world, [&] {
    saved = read_model(options.run);
    saved->options.data = data_of_run(*saved);
    if (options.data.empty()) check_own_data(*saved);
    task = make_task(saved->options, world);
    task->load_validation(described_identity(saved->metadata), options.data);
    if (options.data.empty())
      check_input(task->data_fingerprint() == described(saved->metadata, "data_fingerprint"),
                  "{}: expected the data that its run was given ({}), found other data ({}) in {}: "
                  "to measure all of it, name it with --data",
                  saved->file.string(), visible(saved->metadata["data_fingerprint"]),
                  task->data_fingerprint(), saved->options.data);
    task->make_model();
    load_into(*task->module(), *saved);
  });
  Evaluator evaluator(*task, world, options.batches, /*in_step=*/false, tell);
  Evaluation found = evaluator.chosen();
  SavedEvaluation result{.val_loss = found.loss, .line = line_of(*saved, *task, found)};
  if (evaluator.is_partial()) result.line += formatted(" eval_batches={}", options.batches);
  if (task->has_accuracy()) result.accuracy = found.accuracy;
  return result;
}

}  // namespace lockstep::train
