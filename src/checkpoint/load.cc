#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"
#include "checkpoint/file_names.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/own_tensors.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/random_states.h"
#include "checkpoint/training_json.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/scheduler.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// One of the texts of a scheduler or a scaler, by its place in training.json.
struct TextIn {
  const Metadata& texts;
  std::string_view of;

  [[nodiscard]] const std::string& text(const std::string& name) const {
    auto found = texts.find(name);
    check_input(found != texts.end(), "training.json: has no {}.{}", of, name);
    return found->second;
  }
  [[nodiscard]] std::int64_t count(const std::string& name) const {
    std::optional<std::int64_t> value = parse_integer(text(name));
    check_input(value && *value >= 0, "training.json: {}.{}: expected a count, found '{}'", of,
                name, visible(text(name), 80));
    return *value;
  }
  [[nodiscard]] double number(const std::string& name, const std::string& word) const {
    std::optional<double> value = number_in(word);
    check_input(value && std::isfinite(*value),
                "training.json: {}.{}: expected a number, found '{}'", of, name, visible(word, 80));
    return *value;
  }
};

optim::Scheduler::State scheduler_state(const Metadata& texts) {
  const TextIn in{texts, "scheduler"};
  optim::Scheduler::State state{.step = in.count("step"), .bases = {}};
  std::string bases = in.text("bases");
  for (std::size_t begin = 0; begin < bases.size();) {
    std::size_t end = std::min(bases.find(' ', begin), bases.size());
    state.bases.push_back(in.number("bases", bases.substr(begin, end - begin)));
    begin = end + 1;
  }
  return state;
}

optim::GradScaler::State scaler_state(const Metadata& texts) {
  const TextIn in{texts, "scaler"};
  optim::GradScaler::State state{.scale = in.number("scale", in.text("scale")),
                                 .good_steps = in.count("good_steps")};
  check_input(state.scale > 0, "training.json: scaler.scale: expected more than 0, found {}",
              state.scale);
  return state;
}

void check_is_wanted(std::string_view what, bool is_saved, bool is_given) {
  check_input(!is_saved || is_given,
              "the checkpoint has the state of a {}: expected one in LoadOptions, found none",
              what);
  check_input(is_saved || !is_given,
              "LoadOptions has a {}: expected the state of one in the checkpoint, found none",
              what);
}

// What is saved beside model and optimizer, on every rank.
struct Beside {
  TrainingState state;
  std::optional<optim::Scheduler::State> scheduler;
  std::optional<optim::GradScaler::State> scaler;
};

Beside fitting(const TrainingJson& json, const LoadOptions& options) {
  check_is_wanted("scheduler", json.scheduler.has_value(), options.scheduler != nullptr);
  check_is_wanted("scaler", json.scaler.has_value(), options.scaler != nullptr);
  check_input(
      !json.files.contains(own_file) || options.own != nullptr,
      "the checkpoint has tensors of each rank's own: expected LoadOptions::own, found none");
  Beside beside{.state = json.state, .scheduler = {}, .scaler = {}};
  if (json.scheduler) {
    beside.scheduler = scheduler_state(*json.scheduler);
    std::size_t groups = options.scheduler->state().bases.size();
    check_input(beside.scheduler->bases.size() == groups,
                "the checkpoint's scheduler has {} parameter groups, this one has {}",
                beside.scheduler->bases.size(), groups);
  }
  if (json.scaler) beside.scaler = scaler_state(*json.scaler);
  return beside;
}

TrainingJson read_json(Group& group, const fs::path& folder) {
  std::string text;
  together(group, [&] {
    if (group.is_root()) text = read_json_text(folder);
  });
  text = broadcast_text(group, std::move(text));
  TrainingJson json;
  together(group, [&] { json = parse_json_text(folder, text); });
  return json;
}

// The files of a folder that hold tensors; their headers are those that training.json names.
struct Files {
  PartsReader model, kept;
  std::optional<PartsReader> ignored, own;
};

Files open_files(Group& group, const fs::path& folder, const TrainingJson& json) {
  together(group, [&] {
    if (group.is_root()) check_sealed(json, folder);
  });
  Files files{{group, folder / model_file}, {group, folder / optimizer_file}, {}, {}};
  if (json.files.contains(ignored_file)) files.ignored.emplace(group, folder / ignored_file);
  if (json.files.contains(own_file)) files.own.emplace(group, folder / own_file);
  return files;
}

void verify_files(Files& files) {
  files.model.verify();
  files.kept.verify();
  if (files.ignored) files.ignored->verify();
  if (files.own) files.own->verify();
}

std::vector<at::Tensor> read_random(Group& group, const fs::path& folder, int ranks) {
  std::vector<at::Tensor> random;
  together(group, [&] {
    if (group.is_root()) random = read_random_states(folder / random_file, ranks);
  });
  return random;
}

}  // namespace

TrainingState load(const fs::path& folder, Handle& handle, torch::optim::Optimizer& optimizer,
                   const LoadOptions& options) {
  Group group = handle.group();
  const TrainingJson json = read_json(group, folder);
  Beside beside;
  together(group, [&] { beside = fitting(json, options); });
  const bool same_ranks = beside.state.ranks == group.size();
  Files files = open_files(group, folder, json);
  std::vector<at::Tensor> random = read_random(group, folder, beside.state.ranks);
  PartsReader* ignored = files.ignored ? &*files.ignored : nullptr;
  std::vector<NamedPart> state;
  together(group, [&] {
    state = handle.parts_to_load();
    if (ignored == nullptr) check_nothing_ignored(state);
  });
  check_model_fits(state, files.model);
  if (ignored != nullptr) check_ignored_fit(state, *ignored);
  OptimizerReading optimizer_reading(optimizer, handle, files.kept);
  if (options.verify) verify_files(files);
  std::map<std::string, at::Tensor> own;
  if (files.own && same_ranks) own = read_own(*files.own);
  optimizer_reading.read();
  read_model(handle, files.model, ignored);
  if (beside.scheduler) options.scheduler->load_state(*beside.scheduler);
  if (beside.scaler) options.scaler->load_state(*beside.scaler);
  if (options.own != nullptr) *options.own = std::move(own);
  if (same_ranks) scatter_random_states(group, random);
  return beside.state;
}

std::optional<TrainingState> load_latest(const fs::path& out, Handle& handle,
                                         torch::optim::Optimizer& optimizer,
                                         const LoadOptions& options) {
  Group group = handle.group();
  std::string name;
  together(group, [&] {
    if (!group.is_root()) return;
    if (std::optional<fs::path> newest = latest_checkpoint(out)) name = newest->filename().string();
  });
  name = broadcast_text(group, std::move(name));
  if (name.empty()) return std::nullopt;
  return load(out / name, handle, optimizer, options);
}

TrainingState read_training_state(Group& group, const fs::path& folder) {
  return read_json(group, folder).state;
}

void verify(Group& group, const fs::path& folder) {
  const TrainingJson json = read_json(group, folder);
  Files files = open_files(group, folder, json);
  (void)read_random(group, folder, json.state.ranks);
  verify_files(files);
}

void load_model(const fs::path& path, Handle& handle, bool verify) {
  Group group = handle.group();
  PartsReader model(group, path);
  std::vector<NamedPart> state;
  together(group, [&] { state = handle.parts_to_load(); });
  check_model_fits(state, model);
  if (verify) model.verify();
  read_model(handle, model, nullptr);
}

}  // namespace lockstep::checkpoint
