#include "train/run_folder.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "base/visible.h"
#include "train/checkpoint_fit.h"
#include "train/config_file.h"
#include "train/resume_command.h"

#include "sys/files.h"

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

// The newest of the checkpoints before `folder` that can be read whole.
std::optional<fs::path> newest_whole_before(const fs::path& folder) {
  std::vector<fs::path> folders = checkpoint::list_checkpoints(folder.parent_path());
  auto older = std::ranges::find(folders, folder);
  while (older != folders.begin()) {
    --older;
    try {
      checkpoint::verify(*older);
      return *older;
    } catch (const std::exception&) {
      continue;  // damaged too
    }
  }
  return std::nullopt;
}

// A name for `folder` under which no run looks for checkpoints.
fs::path abandoned_name(const fs::path& folder) {
  std::string name = formatted("abandoned-{}", folder.filename().string());
  fs::path path = folder.parent_path() / name;
  for (int i = 2; fs::exists(path); ++i) path = folder.parent_path() / formatted("{}-{}", name, i);
  return path;
}

}  // namespace

void RunFolder::lock() {
  if (lock_ || !fs::exists(path_)) return;
  lock_.emplace(path_ / "run.lock");
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
  if (options_.resume) {
    fs::path folder = chosen();
    verify_or_advise(folder);
    return folder;
  }
  check_is_new();
  return std::nullopt;
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

void RunFolder::verify_or_advise(const fs::path& folder) const {
  std::string problem;
  try {
    return checkpoint::verify(folder);
  } catch (const BadInput& error) {
    problem = error.what();
  } catch (const SystemError& error) {
    problem = error.what();
  }
  std::optional<fs::path> older = newest_whole_before(folder);
  check_input(older.has_value(), "{}; no older checkpoint in {} is whole", problem, path_.string());
  std::string name = older->filename().string();
  throw BadInput(formatted(
      "{}; the newest older checkpoint that is whole is {}, go on from it with: {}", problem, name,
      resume_command(configuration_, formatted("--resume-from {}", name))));
}

void RunFolder::open(std::int64_t resumed_at) {
  const bool is_new = !lock_;
  sys::make_directories(path_);
  lock();
  if (is_new && !options_.resume) check_is_new();  // another run may have begun meanwhile
  metrics_.emplace(path_ / "metrics.jsonl", resumed_at);
  if (!options_.resume_from.empty()) set_aside_newer(resumed_at);
  write_config(path_ / "config.toml", configuration_);
}

void RunFolder::set_aside_newer(std::int64_t step) {
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path_);
  auto chosen = std::ranges::find(folders, path_ / checkpoint::checkpoint_name(step));
  if (chosen == folders.end()) return;
  for (auto folder = chosen + 1; folder != folders.end(); ++folder) {
    fs::path aside = abandoned_name(*folder);
    sys::rename_durably(*folder, aside);
    notices_.push_back(formatted("{} is now {}: the run goes on from an older checkpoint",
                                 folder->string(), aside.filename().string()));
  }
}

void RunFolder::write_result(const std::string& line) const {
  sys::AtomicFile::write(path_ / "result.txt", line + "\n");
}

}  // namespace lockstep::train
