#include "apps/checkpoint/source.h"

#include "apps/checkpoint/state_dicts.h"
#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/distributed_checkpoint.h"
#include "checkpoint/folders.h"
#include "checkpoint/layout_json.h"
#include "checkpoint/shards.h"
#include "checkpoint/tensor_files.h"
#include "sys/plain_file.h"

#include <lockstep/checkpoint/torch_file.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorFiles;
using checkpoint::TensorSource;
using checkpoint::TensorSources;

constexpr std::uint64_t most_config_bytes = 4 << 20;

TensorSources sources_in(const std::shared_ptr<const TensorFiles>& files) {
  TensorSources sources;
  for (const checkpoint::TensorEntry& entry : files->entries())
    sources.emplace(entry.name, TensorSource{entry.dtype, entry.shape,
                                             [files, &entry] { return files->read(entry); }});
  return sources;
}

// Opens a safetensors file or its shards.
Source of_safetensors(const fs::path& path, const std::string& kind) {
  const auto files = std::make_shared<const TensorFiles>(path);
  return {.kind = kind,
          .model = sources_in(files),
          .metadata = checkpoint::without_checksums(files->metadata())};
}

// Returns what only `reshard` copies.
std::string left_out_of(const fs::path& folder, const checkpoint::LayoutJson& json) {
  std::vector<std::string> parts;
  if (json.scheduler) parts.emplace_back("the scheduler's state");
  if (json.scaler) parts.emplace_back("the scaler's state");
  if (const fs::path file = folder / checkpoint::ignored_file; checkpoint::has_tensors(file))
    parts.push_back(formatted("the ignored tensors in {}", file.string()));
  if (const fs::path file = folder / checkpoint::own_file; checkpoint::has_tensors(file))
    parts.push_back(formatted("the tensors of ranks' own in {}", file.string()));
  return join(parts);
}

Source of_checkpoint(const fs::path& folder) {
  Source source = of_safetensors(folder / checkpoint::model_file,
                                 formatted("the checkpoint {}", folder.string()));
  const checkpoint::LayoutJson json =
      checkpoint::parse_json_text(folder, checkpoint::read_json_text(folder));
  source.training = json.state;
  const fs::path optimizer = folder / checkpoint::optimizer_file;
  if (checkpoint::has_tensors(optimizer))
    source.optimizer = sources_in(std::make_shared<const TensorFiles>(optimizer));
  source.left_out = left_out_of(folder, json);
  return source;
}

// Weights that transformers saved with safe_serialization=False.
constexpr const char* pickled_weights = "pytorch_model.bin";

bool has_only_pickled_weights(const fs::path& folder) {
  return fs::exists(folder / pickled_weights) &&
         !checkpoint::has_tensors(folder / checkpoint::model_file);
}

std::optional<std::string> config_in(const fs::path& folder) {
  if (!fs::exists(folder / "config.json")) return std::nullopt;
  return sys::read_plain_file(folder / "config.json", most_config_bytes);
}

Source of_weights(const fs::path& folder) {
  Source source = of_safetensors(folder / checkpoint::model_file, "a folder of safetensors");
  source.config = config_in(folder);
  return source;
}

// Finds model and optimizer in nested dicts.
void divide(const StateDicts& all, const SourceOptions& options, Source& source) {
  const std::string model = all.model_place(options.model_key);
  source.model = all.tensors_below(model);
  source.has_more = all.has_more_than(model);
  if (!options.for_checkpoint) return;
  for (const std::string& name : all.tied_below(model)) source.model.erase(name);
  source.optimizer =
      all.optimizer_state(options.optimizer_key, model, options.parameters, source.assumed);
}

Source of_torch_file(const fs::path& path, const SourceOptions& options) {
  const c10::IValue value = checkpoint::read_torch_file(path, {.map = true});
  Source source{.kind = "a file of torch.save()", .value = [value] { return c10::IValue(value); }};
  divide(StateDicts(path, value), options, source);
  return source;
}

Source of_distributed(const fs::path& folder, const SourceOptions& options) {
  auto from = std::make_shared<const checkpoint::DistributedFolder>(
      folder, checkpoint::TorchReading{.map = true});
  Source source{.kind = "a distributed checkpoint of PyTorch",
                .value = [folder] { return checkpoint::read_distributed_checkpoint(folder); }};
  divide(StateDicts(folder, from), options, source);
  return source;
}

// A safetensors file begins with the length of its JSON header, whose low bytes may be those with
// which a zip archive or a pickle begins.
bool is_torch_file(const fs::path& path) {
  sys::PlainFile file(path);
  char bytes[9] = {};
  const std::string_view begin(bytes, file.read(std::as_writable_bytes(std::span(bytes))));
  const bool is_safetensors =
      begin.ends_with(std::string_view("\0\0\0\0{", 5)) && begin.size() == 9;
  return !is_safetensors && (begin.starts_with("PK") || begin.starts_with("\x80\x02"));
}

bool is_distributed(const fs::path& path) { return fs::exists(path / ".metadata"); }

// Returns true for a folder that has weights but no checkpoint of ours. A run that saved only its
// model is such a folder.
bool is_weight_folder(const fs::path& path) {
  if (!fs::is_directory(path) || is_checkpoint(path)) return false;
  if (has_only_pickled_weights(path)) return true;
  if (fs::exists(path / checkpoint::index_file) || fs::exists(path / "config.json")) return true;
  return fs::exists(path / checkpoint::model_file) && checkpoint::list_checkpoints(path).empty();
}

}  // namespace

bool is_of_others(const fs::path& path) {
  if (!fs::exists(path)) return false;
  if (fs::is_directory(path)) return is_distributed(path) || is_weight_folder(path);
  return is_torch_file(path);
}

Source source_at(const fs::path& path, const SourceOptions& options) {
  if (fs::exists(path) && !fs::is_directory(path)) {
    if (path.native().ends_with(checkpoint::index_end))
      return of_safetensors(tensor_files_of(path).front(), "shards of safetensors");
    return is_torch_file(path) ? of_torch_file(path, options)
                               : of_safetensors(path, "a safetensors file");
  }
  if (is_distributed(path)) return of_distributed(path, options);
  if (has_only_pickled_weights(path)) {
    Source source = of_torch_file(path / pickled_weights, options);
    source.config = config_in(path);
    return source;
  }
  if (is_weight_folder(path)) return of_weights(path);
  return of_checkpoint(one_at(path));
}

bool is_checkpoint(const fs::path& path) { return fs::exists(path / checkpoint::layout_file); }

std::vector<fs::path> all_at(const fs::path& path) {
  check_input(fs::exists(path), "{}: expected a run, a checkpoint or a file, found nothing",
              path.string());
  if (!fs::is_directory(path) || is_checkpoint(path)) return {path};
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path);
  const auto is_file_of_tensors = [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors";
  };
  check_input(!folders.empty(), "{}: expected a checkpoint in this folder, found none{}",
              path.string(),
              std::ranges::any_of(fs::directory_iterator(path), is_file_of_tensors)
                  ? "; it has safetensors files without an index: name one of them"
                  : "");
  return folders;
}

fs::path one_at(const fs::path& path) { return all_at(path).back(); }

std::vector<fs::path> tensor_files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {checkpoint::without_index_end(path)};
  std::vector<fs::path> files;
  for (const char* name : checkpoint::tensor_files)
    if (checkpoint::has_tensors(path / name)) files.push_back(path / name);
  return files;
}

std::uint64_t bytes_of(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

std::string kind_of(const checkpoint::TensorEntry& entry) {
  return formatted("{} [{}]", checkpoint::name_of(entry.dtype), listed(entry.shape, ", "));
}

}  // namespace lockstep::apps
