#include <lockstep/train/saved_model.h>

#include "base/check.h"
#include "base/text.h"
#include "train/model_description.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/train/config_file.h>

#include <ATen/ops/isfinite.h>

#include <algorithm>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view file_name = "model.safetensors";

std::int64_t described_step(const checkpoint::Metadata& metadata) {
  std::optional<std::int64_t> step = parse_integer(described(metadata, "step"));
  check_input(step && *step >= 0, "metadata: step: expected a whole number, found '{}'",
              described(metadata, "step"));
  return *step;
}

std::int64_t size_of(const SavedModel& saved, const std::string& name, std::size_t dim) {
  auto found = saved.tensors.find(name);
  check_input(found != saved.tensors.end(), "expected a tensor {}, found none", name);
  check_input(found->second.dim() == 2, "tensor {}: expected two dims, found {}", name,
              found->second.dim());
  return found->second.size(static_cast<std::int64_t>(dim));
}

void agree(std::string_view entry, std::int64_t told, std::int64_t found) {
  check_input(told == found, "metadata: {}: {} contradicts the tensors, which are for {}", entry,
              told, found);
}

// How many numbers there are of layers whose tensors are called prefix + number + suffix.
std::int64_t count_layers(const SavedModel& saved, std::string_view prefix,
                          std::string_view suffix) {
  return std::ranges::count_if(saved.tensors, [&](const auto& item) {
    const std::string& name = item.first;
    return name.starts_with(prefix) && name.ends_with(suffix) &&
           name.size() > prefix.size() + suffix.size() &&
           parse_integer(std::string_view(name).substr(
               prefix.size(), name.size() - prefix.size() - suffix.size()));
  });
}

// A file may claim a model that no memory holds: it must have tensors of about that size itself.
// Which of them is missing or too small, load_into() says.
void check_elements(const SavedModel& saved, double model) {
  double found = 0;
  for (const auto& [name, tensor] : saved.tensors) found += static_cast<double>(tensor.numel());
  check_input(2 * found >= model,
              "metadata: layers and width: a model of them has {} elements or more, the tensors "
              "have {}",
              model, found);
}

void check_gpt(const SavedModel& saved) {
  const Options& options = saved.options;
  agree("layers", options.layers, count_layers(saved, "transformer.h.", ".ln_1.weight"));
  agree("width", options.width, size_of(saved, "transformer.wte.weight", 1));
  agree("block", options.block, size_of(saved, "transformer.wpe.weight", 0));
  agree(saved.vocabulary->is_bytes() ? "vocabulary" : "characters", saved.vocabulary->size(),
        size_of(saved, "transformer.wte.weight", 0));
  auto width = static_cast<double>(options.width);
  check_elements(saved, static_cast<double>(options.layers) * 12 * width * width);
}

void check_mlp(const SavedModel& saved) {
  const Options& options = saved.options;
  agree("layers", options.layers, count_layers(saved, "layers.", ".weight"));
  if (options.layers > 1) agree("width", options.width, size_of(saved, "layers.0.weight", 0));
  auto width = static_cast<double>(options.width);
  check_elements(saved, static_cast<double>(options.layers - 2) * width * width);
}

SavedModel described_model(const fs::path& file) {
  checkpoint::Safetensors content = checkpoint::read_safetensors(file);
  try {
    SavedModel saved{.file = file,
                     .options = described_options(content.metadata),
                     .step = described_step(content.metadata),
                     .vocabulary = std::nullopt,
                     .tensors = std::move(content.tensors),
                     .metadata = std::move(content.metadata)};
    if (std::string identity = described_identity(saved.metadata); !identity.empty())
      saved.vocabulary = data::Vocabulary::from_text(identity);
    if (saved.options.task == "gpt") check_gpt(saved);
    if (saved.options.task == "mlp") check_mlp(saved);
    return saved;
  } catch (const BadInput& error) {
    throw BadInput(file.string() + ": " + error.what());
  }
}

}  // namespace

fs::path model_file(const fs::path& run) {
  check_input(fs::exists(run), "{}: expected a run's folder or a file of tensors, found nothing",
              run.string());
  if (!fs::is_directory(run)) return run;
  fs::path own = run / file_name;
  std::optional<fs::path> newest = checkpoint::latest_checkpoint(run);
  check_input(fs::exists(own) || newest.has_value(),
              "{}: expected {} or a checkpoint in this folder, found neither", run.string(),
              file_name);
  if (!newest) return own;
  if (!fs::exists(own)) return *newest / file_name;
  // A run that goes on has the model of its first end and newer checkpoints.
  checkpoint::Metadata metadata = checkpoint::read_safetensors(own, {.tensors = false}).metadata;
  std::string digits = newest->filename().string().substr(std::string_view("step-").size());
  bool is_newest =
      metadata.contains("step") && described_step(metadata) >= parse_integer(digits).value_or(0);
  return is_newest ? own : *newest / file_name;
}

SavedModel read_model(const fs::path& run) { return described_model(model_file(run)); }

std::string data_of_run(const SavedModel& saved) {
  fs::path folder = fs::absolute(saved.file).parent_path();
  if (fs::exists(folder / "training.json")) folder = folder.parent_path();
  if (!fs::exists(folder / "config.toml")) return {};
  auto entries = read_config(folder / "config.toml");
  auto found = std::ranges::find(entries, "data", &ConfigEntry::name);
  return found == entries.end() ? std::string() : found->text;
}

void load_into(torch::nn::Module& module, const SavedModel& saved) {
  try {
    for (const auto& [name, tensor] : saved.tensors)
      check_input(!tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>(),
                  "tensor {}: expected finite numbers, found inf or NaN", name);
    load_state_dict(module, saved.tensors);
  } catch (const BadInput& error) {
    throw BadInput(saved.file.string() + ": " + error.what());
  }
}

models::Gpt gpt_of(const SavedModel& saved) {
  const Options& options = saved.options;
  check_input(options.task == "gpt", "{}: expected a gpt, found a model of task {}",
              saved.file.string(), options.task);
  models::Gpt model(models::GptOptions{.layers = options.layers,
                                       .heads = options.heads,
                                       .width = options.width,
                                       .block = options.block,
                                       .vocabulary = saved.vocabulary->size(),
                                       .dropout = options.dropout});
  load_into(*model, saved);
  model->eval();
  return model;
}

}  // namespace lockstep::train
