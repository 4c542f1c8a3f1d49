#include "checkpoint/content.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "checkpoint/file_names.h"
#include "checkpoint/folders.h"
#include "checkpoint/model_parts.h"
#include "checkpoint/optimizer_parts.h"
#include "checkpoint/own_tensors.h"
#include "checkpoint/parts_writer.h"
#include "checkpoint/random_states.h"
#include "checkpoint/save_lock.h"
#include "sys/files.h"

#include <lockstep/comm/together.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/scheduler.h>

#include <optional>
#include <system_error>
#include <utility>
#include <vector>

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

TrainingJson json_of(const TrainingState& state, const SaveOptions& options, int ranks) {
  TrainingJson json{.state = state};
  json.state.ranks = ranks;
  if (options.scheduler != nullptr) json.scheduler = texts_of(options.scheduler->state());
  if (options.scaler != nullptr) json.scaler = texts_of(options.scaler->state());
  (void)json_text(json);  // or it would be found out when all else is written
  return json;
}

void check_asked(const TrainingState& state, const SaveOptions& options) {
  check(state.step >= 0 && state.step < most_steps,
        "checkpoint::save: expected a step from 0 to {}, found {}", most_steps - 1, state.step);
  check(options.keep >= 0,
        "checkpoint::save: expected to keep 0 (all) checkpoints or more, found {}", options.keep);
}

void check_folder(const fs::path& out, const fs::path& folder) {
  check_input(!fs::exists(folder), "{}: is there already, and a checkpoint is never overwritten",
              folder.string());
  // What is loaded next is the newest one: it must be the one that is saved now.
  std::optional<fs::path> newest = latest_checkpoint(out);
  check_input(!newest || step_of(*newest) <= step_of(folder),
              "{}: is newer than step {}, which is to be saved beside it: move it away, or save "
              "into another folder",
              newest ? newest->string() : "", step_of(folder));
}

// Before anything is written: a disk that is full in the middle is full for others too.
void check_space(const fs::path& folder, std::uint64_t bytes) {
  std::error_code unknown;
  const fs::space_info space = fs::space(folder.parent_path(), unknown);
  if (unknown || space.capacity == 0 || space.available >= bytes) return;
  throw SystemError(formatted("saving {}: needs {}, {} are free there", folder.string(),
                              format_bytes(static_cast<std::int64_t>(bytes)),
                              format_bytes(static_cast<std::int64_t>(space.available))),
                    ENOSPC);
}

// The folder of a checkpoint that is being written, on rank 0: gone at the end unless it has become
// the checkpoint.
class PartialFolder {
 public:
  PartialFolder(const fs::path& out, const fs::path& folder, fs::path partial)
      : partial_(std::move(partial)) {
    std::error_code error;
    if (!fs::create_directory(partial_, error))
      throw SystemError("making folder " + partial_.string(), error.value());
    ScopeExit remove([&] { remove_all(); });
    const auto is_checkpoint = [](const std::string& name) { return step_of(name) >= 0; };
    lock_.emplace(out, "saving", is_checkpoint, partial_);
    check_folder(out, folder);  // another one may have saved until now
    remove.cancel();
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() { remove_all(); }

  void become(const fs::path& folder) {
    std::error_code error;
    fs::rename(partial_, folder, error);
    if (error)
      throw SystemError("renaming " + partial_.string() + " to " + folder.string(), error.value());
    try {
      sys::flush_folder(folder.has_parent_path() ? folder.parent_path() : ".");
    } catch (const SystemError&) {
      fs::rename(folder, partial_, error);  // it has the name, and may not for long
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

std::uint64_t bytes_of(const Content& content, int ranks) {
  constexpr std::uint64_t of_headers = 4 << 10;
  auto random = static_cast<std::uint64_t>(content.random.numel()) * ranks;
  return content.model.bytes() + content.kept.bytes() + content.ignored.bytes() +
         content.own.bytes() + random + json_text(content.json).size() + of_headers;
}

}  // namespace

std::size_t Content::snapshot_bytes() const {
  return model.snapshot_bytes() + kept.snapshot_bytes() + ignored.snapshot_bytes() +
         own.snapshot_bytes();
}

void Content::take_snapshot(std::span<std::byte> bytes) {
  for (PlannedFile* file : {&model, &kept, &ignored, &own}) {
    const std::size_t count = file->snapshot_bytes();
    file->take_snapshot(bytes.first(count));
    bytes = bytes.subspan(count);
  }
}

Content content_of(Group& group, const Handle& handle, const torch::optim::Optimizer& optimizer,
                   const TrainingState& state, const SaveOptions& options) {
  std::vector<FilePart> model, ignored, own, kept;
  TrainingJson json;
  together(group, [&] {
    check_asked(state, options);
    std::vector<NamedPart> parts = handle.state_parts();
    model = model_parts(parts, /*aliases=*/false);
    ignored = ignored_parts(parts, group.rank());
    own = own_parts(options.own, group.rank());
    kept = optimizer_parts(optimizer, handle);
    json = json_of(state, options, group.size());
  });
  std::string name = broadcast_text(group, checkpoint_name(state.step));
  return {.name = std::move(name),
          .json = std::move(json),
          .model = PlannedFile(group, std::move(model), options.description),
          .kept = PlannedFile(group, std::move(kept), {}),
          .ignored = PlannedFile(group, std::move(ignored), {}),
          .own = PlannedFile(group, std::move(own), {}),
          .random = own_random_state(),
          .keep = options.keep};
}

void check_place(Group& group, const fs::path& out, const Content& content) {
  together(group, [&] {
    if (group.is_root()) check_folder(out, out / content.name);
  });
}

fs::path write_content(Group& group, const fs::path& out, Content& content) {
  const fs::path folder = out / content.name;
  std::string word;
  std::optional<PartialFolder> own;
  together(group, [&] {
    if (!group.is_root()) return;
    check_folder(out, folder);
    sys::make_directories(out);
    check_space(folder, bytes_of(content, group.size()));
    word = random_word();
    own.emplace(out, folder, out / partial_name(content.name, word));
  });
  const fs::path partial = out / partial_name(content.name, broadcast_text(group, std::move(word)));
  std::vector<at::Tensor> random = gather_random_states(group, content.random);
  write_parts(group, partial / model_file, content.model);
  write_parts(group, partial / optimizer_file, content.kept);
  if (content.ignored.has_parts()) write_parts(group, partial / ignored_file, content.ignored);
  if (content.own.has_parts()) write_parts(group, partial / own_file, content.own);
  together(group, [&] {
    if (!group.is_root()) return;
    write_safetensors(partial / random_file, named_random_states(random));
    seal(content.json, partial);
    sys::AtomicFile::write(partial / "training.json", json_text(content.json));
    own->become(folder);
    remove_all_but(out, content.keep);
    own.reset();  // no lock is left where another rank looks
  });
  return folder;
}

}  // namespace lockstep::checkpoint
