#include "train/run_folder.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "base/visible.h"
#include "checkpoint/folders.h"
#include "train/checkpoint_fit.h"
#include "train/config_file.h"

#include "sys/files.h"

#include <lockstep/checkpoint/safetensors.h>

#include <algorithm>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// "step-00000100" of "step-100", "100" and the whole name; empty when it is none of them.
std::string checkpoint_named(std::string_view text) {
  constexpr std::string_view prefix = "step-";
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  std::optional<std::int64_t> step = parse_integer(text);
  return step && *step >= 0 ? checkpoint::checkpoint_name(*step) : std::string();
}

// What a model's file says of its step; -1 where it says nothing.
std::int64_t step_of_model(const fs::path& file) {
  try {
    checkpoint::Metadata metadata = checkpoint::read_safetensors(file, {.tensors = false}).metadata;
    return parse_integer(metadata["step"]).value_or(-1);
  } catch (const Error&) {  // a file that nothing can be read from is no model
    return -1;
  }
}

// A name beside `path` under which no run looks for anything.
fs::path abandoned_name(const fs::path& path) {
  std::string name = formatted("abandoned-{}", path.filename().string());
  fs::path aside = path.parent_path() / name;
  for (int i = 2; fs::exists(aside); ++i) aside = path.parent_path() / formatted("{}-{}", name, i);
  return aside;
}

}  // namespace

void RunFolder::lock() {
  if (lock_ || !fs::exists(path_)) return;
  lock_.emplace(path_ / "run.lock");
  if (lock_->state() == sys::FileLock::State::busy && fence_ && fence_->is_of_earlier_round()) {
    notices_.push_back(
        formatted("{}: {}, of an earlier round of this run, still holds the lock; this round has "
                  "taken the folder, and that one writes nothing there any more",
                  path_.string(), lock_->about()));
    return;
  }
  check_input(lock_->state() != sys::FileLock::State::busy,
              "{}: {} is at work in this folder: wait for its end, or name another folder",
              path_.string(), lock_->about());
  if (lock_->state() == sys::FileLock::State::impossible)
    notices_.push_back(formatted(
        "{} cannot be locked ({}): see to it that no other run uses this folder meanwhile",
        path_.string(), lock_->about()));
}

void RunFolder::check_is_new() const {
  bool holds_run = checkpoint::latest_checkpoint(path_).has_value() ||
                   fs::exists(path_ / "metrics.jsonl") || fs::exists(path_ / "model.safetensors");
  check_input(!holds_run, "{} holds a run already: go on with --resume, or name another folder",
              path_.string());
}

std::optional<fs::path> RunFolder::find_checkpoint() {
  lock();
  if (options_.resume) return chosen();
  check_is_new();
  return std::nullopt;
}

std::optional<fs::path> RunFolder::newest_checkpoint() {
  lock();
  if (fence_ && fs::exists(path_)) fence_->take();
  return checkpoint::latest_checkpoint(path_);
}

fs::path RunFolder::chosen() const {
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path_);
  check_input(!folders.empty(), "--resume: expected a checkpoint in {}, found none",
              path_.string());
  if (options_.resume_from.empty()) return folders.back();
  auto found = std::ranges::find(folders, checkpoint_named(options_.resume_from),
                                 [](const fs::path& folder) { return folder.filename().string(); });
  check_input(found != folders.end(),
              "--resume-from {}: no such checkpoint in {}; the newest there is {}",
              visible(options_.resume_from), path_.string(), folders.back().filename().string());
  return *found;
}

std::vector<fs::path> RunFolder::older_than(const fs::path& folder) const {
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path_);
  folders.erase(std::ranges::find(folders, folder), folders.end());
  std::ranges::reverse(folders);
  return folders;
}

void RunFolder::open(std::int64_t resumed_at, bool is_continued,
                     const std::function<void()>& is_taken) {
  const bool is_new = !lock_;
  sys::make_directories(path_);
  lock();
  if (is_new && !options_.resume && !is_continued)
    check_is_new();  // another run may have begun meanwhile
  if (fence_) fence_->take();
  if (options_.resume && !is_continued) set_aside_newer(resumed_at);
  if (is_taken) is_taken();
  metrics_.emplace(path_ / "metrics.jsonl", resumed_at);
  // A later round has the same one.
  if (!is_continued || !fs::exists(path_ / "config.toml"))
    write_config(path_ / "config.toml", configuration_);
}

// The newest first, and the rows of metrics after all: a run that is killed in between leaves what
// a plain --resume goes on from.
void RunFolder::set_aside_newer(std::int64_t step) {
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path_);
  auto chosen = std::ranges::find(folders, path_ / checkpoint::checkpoint_name(step));
  if (chosen != folders.end())
    for (auto folder = folders.end() - 1; folder != chosen; --folder) set_aside(*folder);
  if (!folders.empty()) checkpoint::point_latest(path_);
  for (const fs::path& file : {path_ / "model.safetensors", best_file()})
    if (fs::exists(file) && step_of_model(file) > step) set_aside(file);
}

void RunFolder::set_aside(const fs::path& path) {
  fs::path aside = abandoned_name(path);
  sys::rename_durably(path, aside);
  notices_.push_back(formatted("{} is now {}: the run goes on from an older checkpoint",
                               path.string(), aside.filename().string()));
}

void RunFolder::write_result(const std::string& line) const {
  check();
  sys::AtomicFile::write(path_ / "result.txt", line + "\n");
}

}  // namespace lockstep::train
