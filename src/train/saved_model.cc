#include <lockstep/train/saved_model.h>

#include "base/check.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "checkpoint/shards.h"
#include "sys/files.h"
#include "train/configuration.h"
#include "train/tasks/known.h"
#include "train/tasks/language_models.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/module/state_dict.h>

#include <ATen/ops/isfinite.h>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view file_name = "model.safetensors";

std::int64_t described_step(const checkpoint::Metadata& metadata) {
  std::optional<std::int64_t> step = parse_integer(described(metadata, "step"));
  check_input(step && *step >= 0, "metadata: step: expected an integer, found '{}'",
              described(metadata, "step"));
  return *step;
}

// Throws if the settings claim a model with far more parameters than the file has elements, because
// such a model may fit no memory. load_into() reports each tensor that does not fit the model.
void check_size(const SavedModel& saved) {
  double elements = 0;
  for (const auto& [name, tensor] : saved.tensors) elements += static_cast<double>(tensor.numel());
  check_input(
      saved.task->parameters() <= 2 * elements,
      "metadata: expected a model of the size of its tensors, which have {} elements, found "
      "one with {} parameters",
      elements, saved.task->parameters());
}

SavedModel described_model(const fs::path& file, const fs::path& bpe) {
  checkpoint::Safetensors content = checkpoint::read_safetensors(file);
  SavedModel saved;
  saved.file = file;
  in_file(file, [&] {
    in_metadata([&] { saved.task = make_task(described(content.metadata, "task")); });
    Configuration configuration(*saved.task, saved.task->defaults());
    restore_model(configuration, content.metadata);
    saved.step = described_step(content.metadata);
    saved.tensors = std::move(content.tensors);
    saved.metadata = std::move(content.metadata);
    check_size(saved);
    const auto text = std::dynamic_pointer_cast<TextTask>(saved.task);
    if (text == nullptr) return;
    std::string tables = bpe.string();
    if (tables.empty()) tables = paths_of_run(saved)["bpe"];
    if (!bpe.empty() || sys::exists(tables)) configuration.settings().set("bpe", tables);
    saved.tokenizer = text->tokenizer();
  });
  return saved;
}

}  // namespace

fs::path model_file(const fs::path& run) {
  check_input(sys::exists(run), "{}: expected a run's folder or a file of tensors, found nothing",
              run.string());
  if (!sys::is_folder(run)) return checkpoint::without_index_end(run);
  fs::path own = run / file_name;
  std::optional<fs::path> newest = checkpoint::latest_checkpoint(run);
  const bool has_own = sys::exists(own) || checkpoint::has_index(own);
  check_input(has_own || newest.has_value(),
              "{}: expected {} or a checkpoint in this folder, found neither", run.string(),
              file_name);
  if (!newest) return own;
  if (!has_own) return *newest / file_name;
  // A resumed run has the model of its first end, and newer checkpoints.
  checkpoint::Metadata metadata = checkpoint::read_safetensors(own, {.tensors = false}).metadata;
  const bool is_newest =
      metadata.contains("step") && described_step(metadata) >= checkpoint::step_of(*newest);
  return is_newest ? own : *newest / file_name;
}

SavedModel read_model(const fs::path& run, const fs::path& bpe) {
  return described_model(model_file(run), bpe);
}

std::map<std::string, std::string> paths_of_run(const SavedModel& saved) {
  std::error_code unknown;
  fs::path folder = fs::absolute(saved.file, unknown).parent_path();
  if (sys::exists(folder / checkpoint::layout_file)) folder = folder.parent_path();
  if (!sys::exists(folder / "config.toml")) return {};
  Settings own;
  saved.task->declare(own);
  std::map<std::string, std::string> paths;
  for (const ConfigEntry& entry : read_config(folder / "config.toml"))
    for (const Settings::Entry& setting : own.entries())
      if (setting.is_path && setting.name == entry.name) paths[entry.name] = entry.text;
  return paths;
}

void load_into(torch::nn::Module& module, const SavedModel& saved) {
  in_file(saved.file, [&] {
    for (const auto& [name, tensor] : saved.tensors)
      check_input(!tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>(),
                  "tensor {}: expected finite numbers, found inf or NaN", name);
    load_state_dict(module, saved.tensors);
  });
}

SavedLanguageModel language_model_of(const SavedModel& saved) {
  auto text = std::dynamic_pointer_cast<TextTask>(saved.task);
  check_input(text != nullptr, "{}: expected a gpt, llama or moe, found a model of task {}",
              saved.file.string(), saved.task->name());
  SavedLanguageModel model{.module = text->make_model(),
                           .generate =
                               [text](const at::Tensor& ids, std::int64_t count,
                                      const models::GenerateOptions& options) {
                                 return text->generate(ids, count, options);
                               },
                           .block = text->block(),
                           .plan = text->parallel_plan().tensor};
  load_into(*model.module, saved);
  model.module->eval();
  return model;
}

namespace {

// Returns the model of a task, which must be of type OfTask.
template <class OfTask>
auto model_of(const SavedModel& saved, const char* kind) {
  auto task = std::dynamic_pointer_cast<OfTask>(saved.task);
  check_input(task != nullptr, "{}: expected a {}, found a model of task {}", saved.file.string(),
              kind, saved.task->name());
  load_into(*task->make_model(), saved);
  task->model()->eval();
  return task->model();
}

}  // namespace

models::Gpt gpt_of(const SavedModel& saved) { return model_of<GptTask>(saved, "gpt"); }

models::Llama llama_of(const SavedModel& saved) { return model_of<LlamaTask>(saved, "llama"); }

}  // namespace lockstep::train
