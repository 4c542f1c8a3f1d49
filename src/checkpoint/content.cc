#include "checkpoint/content.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/parts_reader.h"
#include "checkpoint/rank_tensors.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shards.h"
#include "sys/file_lock.h"
#include "sys/files.h"

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/schedule.h>

#include <chrono>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t most_steps = 1'000'000'000'000'000'000;  // as many digits as names may have

Metadata texts_of(const optim::Scheduler::State& state) {
  return {{"step", formatted("{}", state.step)}, {"bases", listed(state.bases, " ")}};
}

Metadata texts_of(const optim::GradScaler::State& state) {
  return {{"scale", number_text(state.scale)}, {"good_steps", formatted("{}", state.good_steps)}};
}

// Returns the handle's axes that have several ranks. If the handle's mesh has only some of the
// ranks, such as those of a stage, returns none, because its axes do not describe the whole run.
std::vector<MeshAxis> axes_of(const Handle& handle, int ranks) {
  const std::optional<Mesh> mesh = handle.mesh();
  if (!mesh || mesh->layout().ranks() != ranks) return {};
  std::vector<MeshAxis> axes = mesh->axes();
  std::erase_if(axes, [](const MeshAxis& axis) { return axis.size == 1; });
  return axes;
}

void check_asked(const TrainingState& state, const SaveOptions& options) {
  check(state.step >= 0 && state.step < most_steps,
        "checkpoint::save: expected a step from 0 to {}, found {}", most_steps - 1, state.step);
  check(state.epoch >= 0 && state.epoch < most_steps,
        "checkpoint::save: expected an epoch from 0 to {}, found {}", most_steps - 1, state.epoch);
  check(options.keep >= 0, "checkpoint::save: expected keep of at least 0 (0 keeps all), found {}",
        options.keep);
  constexpr int most_files = 99'999;  // as many digits as names have
  check(options.sharding.files >= 0 && options.sharding.files <= most_files,
        "checkpoint::save: expected sharding.files from 0 (by size) to {}, found {}", most_files,
        options.sharding.files);
  check(options.sharding.bytes > 0,
        "checkpoint::save: expected sharding.bytes of at least 1, found {}",
        options.sharding.bytes);
}

void check_folder(const fs::path& out, const fs::path& folder) {
  check_input(!sys::exists(folder),
              "{}: exists already, and a checkpoint is never overwritten: remove it, or save under "
              "another name",
              folder.string());
  if (step_of(folder) < 0) return;  // the caller chose another name, which load() does not search
  // load() takes the newest checkpoint, so the checkpoint that is saved now must be the newest.
  const std::vector<fs::path> folders = list_checkpoints(out);
  check_input(folders.empty() || step_of(folders.back()) <= step_of(folder),
              "{}: is newer than step {}, which is being saved beside it: move it away, or save "
              "into another folder",
              folders.empty() ? "" : folders.back().string(), step_of(folder));
}

// Checks the free space before anything is written: a disk that fills up during the save also fails
// for other programs.
void check_space(const fs::path& folder, std::uint64_t bytes) {
  std::error_code unknown;
  const fs::space_info space = fs::space(folder.parent_path(), unknown);
  if (unknown || space.capacity == 0 || space.available >= bytes) return;
  throw SystemError(formatted("saving {}: needs {}, {} are free there", folder.string(),
                              format_bytes(static_cast<std::int64_t>(bytes)),
                              format_bytes(static_cast<std::int64_t>(space.available))),
                    ENOSPC);
}

// SaveLock: allows one writer per name and folder, so that another writer's files are neither
// removed as leftovers of a killed run nor overwritten.
class SaveLock {
 public:
  // Locks `folder`/.NAME.lock, then removes partial files of killed writers for which `is_ours` is
  // true. If another writer holds the lock, throws BadInput unless `passes_over_others` is set: the
  // caller then knows that the other writer will not rename its files. Throws SystemError. If a
  // writer on another host might not be visible (a filesystem without locks, or one of several
  // hosts), files that changed during the last day are not removed.
  SaveLock(const std::filesystem::path& folder, const std::string& name,
           const std::function<bool(const std::string&)>& is_ours, bool passes_over_others = false)
      : lock_(folder / formatted(".{}.lock", name)) {
    using State = sys::FileLock::State;
    check_input(
        passes_over_others || lock_.state() != State::busy,
        "{}: {} is saving here: only one may save at a time, and all ranks that have a part "
        "of the model must save together",
        folder.string(), lock_.about());
    const auto least_age =
        lock_.reaches_everybody() ? std::chrono::hours(0) : std::chrono::hours(24);
    remove_partial(folder, is_ours, least_age);
  }

 private:
  sys::FileLock lock_;
};

// The folder, on rank 0, of a checkpoint that is being written. The destructor removes it unless
// become() has renamed it.
class PartialFolder {
 public:
  // Takes the lock first. Partial folders without a lock were left by a killed writer and are
  // removed.
  PartialFolder(const fs::path& out, const fs::path& folder, fs::path partial, bool is_fenced)
      : partial_(std::move(partial)),
        lock_(
            std::in_place, out, "saving",
            [&](const std::string& name) {
              return step_of(name) >= 0 || name == folder.filename() || name == latest_file;
            },
            is_fenced) {
    check_folder(out, folder);  // again: another writer may have saved
    std::error_code error;
    if (!fs::create_directory(partial_, error))
      throw SystemError("making folder " + partial_.string(), error.value());
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() { remove_all(); }

  void become(const fs::path& folder) {
    const fs::path out = folder.has_parent_path() ? folder.parent_path() : ".";
    std::error_code error;
    fs::rename(partial_, folder, error);
    if (error)
      throw SystemError("renaming " + partial_.string() + " to " + folder.string(), error.value());
    try {
      sys::flush_folder(out);
      if (step_of(folder) >= 0) point_latest(out);
    } catch (const SystemError&) {
      fs::rename(folder, partial_, error);  // undo: the save has failed
      point_latest_quietly(out);
      throw;
    }
  }

 private:
  void remove_all() {
    std::error_code nothing_more_to_do;
    fs::remove_all(partial_, nothing_more_to_do);
  }

  const fs::path partial_;
  std::optional<SaveLock> lock_;
};

std::uint64_t bytes_of(const Content& content) {
  constexpr std::uint64_t block = 4 << 10, others = 4;  // layout.json, two indexes and LATEST
  std::uint64_t bytes = json_text(content.json).size() + others * block;
  for (const PlannedFile& file : content.files)
    for (const std::uint64_t of_shard : file.tensors.bytes_by_shard())
      bytes += (of_shard + block - 1) / block * block;
  return bytes;
}

}  // namespace

LayoutJson layout_json(const TrainingState& state, const SaveOptions& options, int ranks) {
  LayoutJson json{.state = state};
  json.state.ranks = ranks;
  if (options.scheduler != nullptr) json.scheduler = texts_of(options.scheduler->state());
  if (options.scaler != nullptr) json.scaler = texts_of(options.scaler->state());
  (void)json_text(json);  // throws now, not after all files are written
  return json;
}

std::size_t Content::snapshot_bytes() const {
  std::size_t bytes = 0;
  for (const PlannedFile& file : files) bytes += file.tensors.snapshot_bytes();
  return bytes;
}

void Content::take_snapshot(std::span<std::byte> bytes) {
  for (PlannedFile& file : files) {
    const std::size_t own = file.tensors.snapshot_bytes();
    file.tensors.take_snapshot(bytes.first(own));
    bytes = bytes.subspan(own);
  }
}

Content content_of(Group& group, const Handle& handle, const torch::optim::Optimizer& optimizer,
                   const TrainingState& state, const SaveOptions& options) {
  std::vector<FilePart> model, ignored, own, kept;
  Content content;
  run_on_all_or_fail(group, [&] {
    check_asked(state, options);
    std::vector<Part> parts = handle.state_parts();
    model = model_parts(parts, /*aliases=*/false);
    ignored = ignored_parts(parts, group.rank());
    own = own_parts(options.per_rank, group.rank());
    kept = optimizer_parts(optimizer, handle);
    content.json = layout_json(state, options, group.size());
    content.json.mesh = axes_of(handle, group.size());
  });
  content.name = broadcast_text(group, checkpoint_name(state.step));
  content.keep = options.keep;
  content.before_naming = options.before_naming;
  const auto numbers =
      numbers_of_all(group, {options.sharding.files, options.sharding.bytes}, part_call);
  const Sharding sharding{.files = static_cast<int>(numbers[0]), .bytes = numbers[1]};  // rank 0's
  const auto add = [&](const char* name, std::vector<FilePart> parts, const Sharding& how,
                       const Metadata& metadata = {}) {
    PlannedTensors planned(group, std::move(parts), metadata, how);
    if (planned.has_parts() || !may_be_missing(name))
      content.files.push_back({name, std::move(planned)});
  };
  add(model_file, std::move(model), sharding, options.description);
  add(optimizer_file, std::move(kept), sharding);
  add(ignored_file, std::move(ignored), sharding);
  add(own_file, std::move(own), {.files = 1});
  add(random_file, random_parts(group.rank()), {.files = 1});
  run_on_root_or_fail(group, [&] {
    content.json.parts = parts_text(content.files.front().tensors.by_rank());
    (void)json_text(content.json);  // throws if the text is now too long
  });
  return content;
}

void check_place(Group& group, const fs::path& out, const Content& content) {
  run_on_root_or_fail(group, [&] { check_folder(out, out / content.name); });
}

fs::path write_content(Group& group, const fs::path& out, Content& content) {
  fs::path folder = out / content.name;
  std::optional<PartialFolder> own;
  const std::string word = text_of_root(group, [&] {
    check_folder(out, folder);
    sys::make_directories(out);
    check_space(folder, bytes_of(content));
    std::string drawn = random_word();
    own.emplace(out, folder, out / partial_name(content.name, drawn),
                static_cast<bool>(content.before_naming));
    return drawn;
  });
  const fs::path partial = out / partial_name(content.name, word);
  for (PlannedFile& file : content.files) write_parts(group, partial / file.name, file.tensors);
  run_on_root_or_fail(group, [&] {
    seal(content.json, partial);
    sys::AtomicFile::write(partial / layout_file, json_text(content.json));
    if (content.before_naming) content.before_naming();
    own->become(folder);
    remove_all_but(out, content.keep);
    own.reset();  // unlocks before other ranks may look
  });
  return folder;
}

fs::path save(const fs::path& out, const Handle& handle, const torch::optim::Optimizer& optimizer,
              const TrainingState& state, const SaveOptions& options) {
  Group group = handle.group();
  Content content = content_of(group, handle, optimizer, state, options);
  return write_content(group, out, content);
}

void save_model(const fs::path& path, const Handle& handle, const ModelOptions& options) {
  Group group = handle.group();
  std::vector<FilePart> parts;
  run_on_all_or_fail(group, [&] { parts = model_parts(handle.state_parts(), options.aliases); });
  PlannedTensors file(group, std::move(parts), options.metadata);
  const std::string name = path.filename().string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::optional<SaveLock> lock;
  const std::string word = text_of_root(group, [&] {
    check(!name.empty(), "save_model: expected the name of a file, found {}", path.string());
    check_input(sys::is_folder(folder), "{}: expected a folder to save a model in, found none",
                folder.string());
    lock.emplace(
        folder, name, [&](const std::string& found) { return found == name; },
        static_cast<bool>(options.before_naming));
    return random_word();
  });
  const fs::path partial = folder / partial_name(name, word);
  ScopeExit remove([&] {
    std::error_code nothing_more_to_do;
    if (group.is_root()) fs::remove(partial, nothing_more_to_do);
  });
  write_parts(group, partial, file);
  run_on_root_or_fail(group, [&] {
    if (options.before_naming) options.before_naming();
    sys::rename_durably(partial, path);
    lock.reset();  // removed before other ranks look into the folder
  });
}

namespace {

std::vector<FilePart> parts_in(const std::shared_ptr<PartsReader>& file) {
  std::vector<FilePart> parts;
  for (const TensorEntry& entry : file->entries())
    parts.push_back({.part = {.name = entry.name,
                              .tensor = no_elements(entry.dtype),
                              .slice = layout::whole_slice(entry.shape)},
                     .values = [file, &entry] { return file->read_whole(entry); }});
  return parts;
}

}  // namespace

void reshard(const fs::path& from, const fs::path& to, const Sharding& sharding) {
  Content content{.name = to.filename().string(),
                  .json = parse_json_text(from, read_json_text(from)),
                  .files = {}};
  check_input(!content.name.empty(), "{}: expected the name of a new folder", to.string());
  const std::int64_t step = content.json.state.step;
  check_input(step_of(to) < 0 || step_of(to) == step,
              "{}: expected the name {}, the step of {}, or a name without a step", to.string(),
              checkpoint_name(step), from.string());
  verify(from);
  Group alone;
  for (const char* name : tensor_files) {
    if (!has_tensors(from / name)) continue;
    auto file = std::make_shared<PartsReader>(alone, from / name);
    content.files.push_back(
        {name, PlannedTensors(alone, parts_in(file), without_checksums(file->metadata()),
                              name == random_file ? Sharding{.files = 1} : sharding)});
  }
  write_content(alone, to.has_parent_path() ? to.parent_path() : fs::path("."), content);
}

}  // namespace lockstep::checkpoint
