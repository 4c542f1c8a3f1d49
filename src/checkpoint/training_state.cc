#include <lockstep/checkpoint/training_state.h>

#include <lockstep/base/error.h>
#include <lockstep/base/scope_exit.h>

#include "sys/files.h"

#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <fstream>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr int format_version = 1;
constexpr std::string_view folder_prefix = "step-";

std::string folder_name(std::int64_t step) { return formatted("{}{:08}", folder_prefix, step); }

// The step in a checkpoint folder's name, or -1 for any other name.
std::int64_t step_of(const fs::path& folder) {
  std::string name = folder.filename().string();
  if (!name.starts_with(folder_prefix)) return -1;
  std::string digits = name.substr(folder_prefix.size());
  bool good = digits.size() >= 8 && digits.size() <= 18 &&
              std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c); });
  return good ? std::stoll(digits) : -1;
}

NamedTensors by_rank(const std::vector<at::Tensor>& states) {
  NamedTensors named;
  for (std::size_t rank = 0; rank < states.size(); ++rank)
    named[formatted("rank{}", rank)] = states[rank];
  return named;
}

std::string json_of(const TrainingState& state) {
  nlohmann::ordered_json json{{"format", format_version},   {"step", state.step},
                              {"epoch", state.epoch},       {"ranks", state.random.size()},
                              {"progress", state.progress}, {"config", state.config}};
  return json.dump(2) + "\n";
}

void write_files(const fs::path& folder, const TrainingState& state) {
  write_safetensors(folder / "model.safetensors", state.model, state.description);
  write_safetensors(folder / "optimizer.safetensors", state.optimizer);
  write_safetensors(folder / "random.safetensors", by_rank(state.random));
  sys::AtomicFile::write(folder / "training.json", json_of(state));
}

void remove_all_but(const fs::path& out, std::int64_t keep) {
  std::vector<fs::path> folders = list_checkpoints(out);
  if (keep == 0 || static_cast<std::int64_t>(folders.size()) <= keep) return;
  for (const fs::path& folder : std::span(folders).first(folders.size() - keep)) {
    std::error_code ignored;  // an old checkpoint that stays harms nobody
    fs::remove_all(folder, ignored);
  }
}

void read_json(const fs::path& path, TrainingState& state, std::size_t& ranks) {
  std::ifstream file(path);
  if (!file) throw BadInput(path.string() + ": cannot be opened");
  try {
    auto json = nlohmann::json::parse(file);
    if (int found = json.at("format"); found != format_version)
      throw BadInput(
          formatted("{}: expected format {}, found {}", path.string(), format_version, found));
    state.step = json.at("step");
    state.epoch = json.at("epoch");
    state.progress = json.at("progress").get<Metadata>();
    state.config = json.at("config").get<Metadata>();
    ranks = json.at("ranks");
  } catch (const nlohmann::json::exception& error) {
    throw BadInput(formatted("{}: {}", path.string(), error.what()));
  }
}

}  // namespace

void save_training_state(const fs::path& out, const TrainingState& state, std::int64_t keep) {
  fs::path folder = out / folder_name(state.step);
  fs::path partial = out / formatted(".{}.partial", folder_name(state.step));
  if (fs::exists(folder))
    throw BadInput(folder.string() + ": is there already, and a checkpoint is never overwritten");
  std::error_code error;
  fs::remove_all(partial, error);  // what a killed run left
  if (!fs::create_directory(partial, error))
    throw SystemError("cannot make folder " + partial.string(), error.value());
  ScopeExit remove_partial([&] {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
  });
  write_files(partial, state);
  sys::rename_durably(partial, folder);
  remove_partial.cancel();
  remove_all_but(out, keep);
}

std::vector<fs::path> list_checkpoints(const fs::path& out) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(out, error))
    if (step_of(entry.path()) >= 0) folders.push_back(entry.path());
  std::ranges::sort(folders, {}, step_of);
  return folders;
}

std::optional<fs::path> latest_checkpoint(const fs::path& out) {
  std::vector<fs::path> folders = list_checkpoints(out);
  return folders.empty() ? std::nullopt : std::optional(folders.back());
}

TrainingState load_training_state(const fs::path& folder) {
  TrainingState state;
  std::size_t ranks = 0;
  read_json(folder / "training.json", state, ranks);
  Safetensors model = read_safetensors(folder / "model.safetensors");
  state.model = std::move(model.tensors);
  state.description = std::move(model.metadata);
  state.optimizer = read_safetensors(folder / "optimizer.safetensors").tensors;
  NamedTensors random = read_safetensors(folder / "random.safetensors").tensors;
  if (random.size() != ranks)
    throw BadInput(formatted("{}: expected {} tensors, found {}",
                             (folder / "random.safetensors").string(), ranks, random.size()));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    auto found = random.find(formatted("rank{}", rank));
    if (found == random.end())
      throw BadInput(
          formatted("{}: has no rank{}", (folder / "random.safetensors").string(), rank));
    state.random.push_back(found->second);
  }
  return state;
}

}  // namespace lockstep::checkpoint
