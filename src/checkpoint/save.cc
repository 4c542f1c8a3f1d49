#include "base/check.h"
#include "base/scope_exit.h"
#include "checkpoint/file_names.h"
#include "checkpoint/folders.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/part_exchange.h"
#include "checkpoint/parts_writer.h"
#include "checkpoint/random_states.h"
#include "checkpoint/training_json.h"
#include "sys/files.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/scheduler.h>

#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string new_partial_name(Group& group, const std::string& name) {
  std::string text;
  together(group, [&] {
    if (group.is_root()) text = partial_name(name, random_word());
  });
  return broadcast_text(group, text);
}

Metadata texts_of(const optim::Scheduler::State& state) {
  return {{"step", formatted("{}", state.step)}, {"bases", listed(state.bases, " ")}};
}

Metadata texts_of(const optim::GradScaler::State& state) {
  return {{"scale", number_text(state.scale)}, {"good_steps", formatted("{}", state.good_steps)}};
}

std::string json_of(const TrainingState& state, const SaveOptions& options, int ranks) {
  TrainingJson json{.state = state};
  json.state.ranks = ranks;
  if (options.scheduler != nullptr) json.scheduler = texts_of(options.scheduler->state());
  if (options.scaler != nullptr) json.scaler = texts_of(options.scaler->state());
  return json_text(json);
}

constexpr std::int64_t most_steps = 1'000'000'000'000'000'000;  // as many digits as names may have

void check_asked(const TrainingState& state, const SaveOptions& options) {
  check(state.step >= 0 && state.step < most_steps,
        "checkpoint::save: expected a step from 0 to {}, found {}", most_steps - 1, state.step);
  check(options.keep >= 0,
        "checkpoint::save: expected to keep 0 (all) checkpoints or more, found {}", options.keep);
}

// What is loaded next is the newest one: it must be the one that is saved now.
void check_newest(const fs::path& out, std::int64_t step) {
  std::optional<fs::path> newest = latest_checkpoint(out);
  check_input(
      !newest || step_of(*newest) <= step,
      "{}: is newer than step {}, which is to be saved beside it: move it away, or save into "
      "another folder",
      newest ? newest->string() : "", step);
}

void make_partial_folder(const fs::path& out, const fs::path& folder, const fs::path& partial) {
  check_input(!fs::exists(folder), "{}: is there already, and a checkpoint is never overwritten",
              folder.string());
  check_newest(out, step_of(folder));
  sys::make_directories(out);
  remove_partial(out, folder_prefix);
  std::error_code error;
  if (!fs::create_directory(partial, error))
    throw SystemError("making folder " + partial.string(), error.value());
}

}  // namespace

fs::path save(const fs::path& out, const Handle& handle, const torch::optim::Optimizer& optimizer,
              const TrainingState& state, const SaveOptions& options) {
  Group group = handle.group();
  std::vector<FilePart> model, ignored, kept;
  std::string json;
  together(group, [&] {
    check_asked(state, options);
    std::vector<NamedPart> parts = handle.state_parts();
    model = model_parts(parts, /*aliases=*/false);
    ignored = ignored_parts(parts, group.rank());
    kept = optimizer_parts(optimizer, handle);
    json = json_of(state, options, group.size());
  });
  std::string name = broadcast_text(group, checkpoint_name(state.step));
  fs::path folder = out / name, partial = out / new_partial_name(group, name);
  ScopeExit remove([&] {
    std::error_code nothing_more_to_do;
    if (group.is_root()) fs::remove_all(partial, nothing_more_to_do);
  });
  together(group, [&] {
    if (group.is_root()) make_partial_folder(out, folder, partial);
  });
  std::vector<at::Tensor> random = gather_random_states(group);
  write_parts(group, partial / model_file, model, options.description);
  write_parts(group, partial / optimizer_file, kept, {});
  std::set<std::string> ignored_names;
  for (const FilePart& part : ignored) ignored_names.insert(part.what.name);
  if (!names_of_all(group, ignored_names).empty())
    write_parts(group, partial / ignored_file, ignored, {});
  together(group, [&] {
    if (!group.is_root()) return;
    write_safetensors(partial / random_file, named_random_states(random));
    sys::AtomicFile::write(partial / "training.json", json);  // and flushes the folder
    sys::rename_durably(partial, folder);
    remove.cancel();
    remove_all_but(out, options.keep);
  });
  return folder;
}

void save_model(const fs::path& path, const Handle& handle, const ModelOptions& options) {
  Group group = handle.group();
  std::vector<FilePart> parts;
  together(group, [&] { parts = model_parts(handle.state_parts(), options.aliases); });
  fs::path partial = path;
  partial.replace_filename(new_partial_name(group, path.filename().string()));
  ScopeExit remove([&] {
    std::error_code nothing_more_to_do;
    if (group.is_root()) fs::remove(partial, nothing_more_to_do);
  });
  if (group.is_root()) remove_partial(partial.parent_path(), path.filename().string() + ".");
  write_parts(group, partial, parts, options.metadata);
  together(group, [&] {
    if (group.is_root()) sys::rename_durably(partial, path);
  });
}

}  // namespace lockstep::checkpoint
