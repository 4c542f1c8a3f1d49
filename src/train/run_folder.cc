#include "train/run_folder.h"

#include "base/check.h"
#include "base/environment.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "module/checks.h"
#include "rank_env/variables.h"
#include "sys/files.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>
#include <string_view>
#include <system_error>

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = "run.lock";
constexpr const char* config_name = "config.toml";
constexpr const char* metrics_name = "metrics.jsonl";
constexpr const char* result_name = "result.txt";
constexpr const char* model_name = "model.safetensors";
constexpr const char* best_name = "best.safetensors";
constexpr const char* job_name = ".job";
constexpr std::string_view abandoned_prefix = "abandoned-";
bool is_file_of_run(std::string_view name) {
  return std::ranges::count(std::array<std::string_view, 5>{config_name, metrics_name, result_name,
                                                            model_name, best_name},
                            name) > 0;
}

bool is_flight_record(std::string_view name) {
  constexpr std::string_view before = "flight-rank-", after = ".json";
  if (!name.starts_with(before) || !name.ends_with(after)) return false;
  name = name.substr(before.size(), name.size() - before.size() - after.size());
  return parse_integer(name).has_value();
}

// Returns true for "abandoned-NAME" and "abandoned-NAME-2", where NAME is a file name above, a
// flight record or a checkpoint.
bool is_abandoned(std::string_view name) {
  if (!name.starts_with(abandoned_prefix)) return false;
  name.remove_prefix(abandoned_prefix.size());
  const std::size_t number = name.find_last_not_of("0123456789");
  const bool has_number =
      number != std::string_view::npos && number + 1 < name.size() && name[number] == '-';
  const auto is_of_run = [](std::string_view of) {
    return is_file_of_run(of) || is_flight_record(of) || checkpoint::step_of(fs::path(of)) >= 0;
  };
  return is_of_run(name) || (has_number && is_of_run(name.substr(0, number)));
}

// Returns true for every file of a run except checkpoints and the lock.
bool is_left_by_run(const std::string& name) {
  return is_file_of_run(name) || is_abandoned(name) || is_flight_record(name) ||
         name == checkpoint::latest_file || name == ".round" || name == job_name;
}

// Returns "step-00000100" for "step-100", "100" or the full name; empty for another text.
std::string checkpoint_named(std::string_view text) {
  constexpr std::string_view prefix = "step-";
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  std::optional<std::int64_t> step = parse_integer(text);
  return step && *step >= 0 ? checkpoint::checkpoint_name(*step) : std::string();
}

// Returns the step in the metadata of a model file, or -1 without such an entry.
std::int64_t step_of_model(const fs::path& file) {
  try {
    checkpoint::Metadata metadata = checkpoint::read_safetensors(file, {.tensors = false}).metadata;
    return parse_integer(metadata["step"]).value_or(-1);
  } catch (const Error&) {  // an unreadable file is not a model
    return -1;
  }
}

// Returns an unused name next to `path` that no run reads.
fs::path abandoned_name(const fs::path& path) {
  std::string name = formatted("{}{}", abandoned_prefix, path.filename().string());
  fs::path aside = path.parent_path() / name;
  for (int i = 2; sys::exists(aside); ++i) aside = path.parent_path() / formatted("{}-{}", name, i);
  return aside;
}

bool is_positive(const char* variable) { return environment::integer(variable, 0).value_or(0) > 0; }

// Returns the run id of `lockstep run` or torchrun; empty without them. By default, torchrun's run
// id is "none": then the agent, which starts all rounds of a run, identifies the run.
std::string launch_of_this_process() {
  const std::string run = environment::text(rank_env::variable::run_id).value_or("");
  if (run != "none") return run;
  return formatted("none of process {} on host {}", ::getppid(), sys::host_name());
}

// Reads the jobs from the environment. Throws BadInput for counts that are not numbers.
std::vector<RunFolder::Job> jobs_of_this_process() {
  std::vector<RunFolder::Job> jobs;
  if (const std::string run = launch_of_this_process(); !run.empty())
    jobs.push_back({"launch " + run, is_positive(rank_env::variable::restart_count) ||
                                         is_positive(rank_env::variable::round)});
  // A requeued job keeps its id.
  if (const std::string job = environment::text("SLURM_JOB_ID").value_or(""); !job.empty())
    jobs.push_back({"slurm " + job, is_positive("SLURM_RESTART_COUNT")});
  return jobs;
}

// Returns the text of a file of jobs; empty if the file does not exist.
std::string text_of_jobs(const fs::path& file) {
  constexpr std::uint64_t most_bytes = 64 << 10;
  std::error_code is_unknown;
  return fs::exists(file, is_unknown) ? sys::read_plain_file(file, most_bytes) : std::string();
}

// Writes the file, or removes it if no launcher names a job. The file is only durable while the
// host keeps running, because a job does not survive its hosts. Later rounds of a run have the same
// jobs, and must begin on a full disk too, so they write nothing.
void write_jobs(const fs::path& file, const std::vector<RunFolder::Job>& jobs) {
  std::string text;
  for (const RunFolder::Job& job : jobs) text += job.line + "\n";
  if (!text.empty()) {
    if (text_of_jobs(file) != text) sys::AtomicFile::write_for_now(file, text);
    return;
  }
  std::error_code is_missing;
  fs::remove(file, is_missing);
}

}  // namespace

RunFolder::RunFolder(const Configuration& configuration, const std::optional<RoundOfRun>& round)
    : configuration_(configuration),
      path_(configuration.options.out),
      jobs_(jobs_of_this_process()) {
  if (round) fence_.emplace(path_, *round);
}

bool RunFolder::is_restart() const {
  std::istringstream lines(text_of_jobs(path_ / job_name));
  for (std::string line; std::getline(lines, line);)
    for (const Job& job : jobs_)
      if (job.is_started_again && job.line == line) return true;
  return false;
}

void RunFolder::lock() {
  if (lock_ || !sys::exists(path_)) return;
  lock_.emplace(path_ / lock_name);
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
  const bool can_go_on = checkpoint::latest_checkpoint(path_).has_value();
  check_input(!can_go_on,
              "{} holds a run already: pass --resume to continue it, --overwrite to replace it, or "
              "another --out",
              path_.string());
  for (const char* model : {model_name, best_name})
    check_input(!sys::exists(path_ / model),
                "{} holds {} of a run without a checkpoint: pass --overwrite to replace it, or "
                "another --out",
                path_.string(), model);
}

std::optional<fs::path> RunFolder::chosen_start() const {
  const bool names_one = !options_.resume_from.empty();
  if (is_restart() || (options_.resume_auto && !names_one))
    return checkpoint::latest_checkpoint(path_);
  if (options_.resume || names_one) return chosen();
  if (!options_.overwrite) check_is_new();
  return std::nullopt;
}

// If the folder has a lock, another run may be active that has not saved yet; find_checkpoint()
// reports that.
void RunFolder::check_start() const {
  if (options_.resume && sys::exists(path_ / lock_name)) return;
  (void)chosen_start();
}

std::optional<fs::path> RunFolder::find_checkpoint() {
  lock();
  return chosen_start();
}

std::optional<fs::path> RunFolder::newest_checkpoint() {
  lock();
  if (fence_ && sys::exists(path_)) fence_->take();
  return checkpoint::latest_checkpoint(path_);
}

fs::path RunFolder::chosen() const {
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path_);
  check_input(
      !folders.empty(),
      "--resume: expected a checkpoint in {}, found none; --resume auto begins the run then",
      path_.string());
  if (options_.resume_from.empty()) return folders.back();
  auto found = std::ranges::find(folders, checkpoint_named(options_.resume_from),
                                 [](const fs::path& folder) { return folder.filename().string(); });
  check_input(found != folders.end(),
              "--resume-from {}: no such checkpoint in {}; the newest there is {}",
              escaped(options_.resume_from), path_.string(), folders.back().filename().string());
  return *found;
}

void RunFolder::verify(Group& world, const fs::path& folder) const {
  std::string problem;
  int rank = 0;
  try {
    return checkpoint::verify(world, folder);
  } catch (const CollectiveFailure& failure) {
    problem = failure.what();
    rank = failure.rank();
  }
  const std::string older = newest_whole_before(world, folder);
  if (older.empty())
    throw CollectiveFailure(
        formatted("{}; no older checkpoint in {} is whole", problem, path_.string()), rank);
  throw CollectiveFailure(
      formatted("{}; the newest older checkpoint that is whole is {}, go on from it with: {}",
                problem, older,
                resume_command(configuration_, formatted("--resume-from {}", older))),
      rank);
}

// Empty if there is no such checkpoint.
std::string RunFolder::newest_whole_before(Group& world, const fs::path& folder) const {
  std::istringstream lines(modules::text_of_root(world, [&] {
    std::string names;  // one per line, newest first
    for (const fs::path& other : checkpoint::list_checkpoints(path_)) {
      if (other == folder) break;
      names = other.filename().string() + "\n" + names;
    }
    return names;
  }));
  for (std::string name; std::getline(lines, name);) {
    try {
      checkpoint::verify(world, path_ / name);
      return name;
    } catch (const CollectiveFailure&) {
      continue;  // damaged too
    }
  }
  return {};
}

void RunFolder::open(const Opening& opening) {
  const bool is_new = !lock_;
  sys::make_directories(path_);
  lock();
  if (is_new && !opening.is_continued) check_is_new();  // another run may have started meanwhile
  if (fence_) fence_->take();
  if (!opening.is_continued && !is_restart()) make_room(opening);
  if (opening.is_taken) opening.is_taken();
  checkpoint::remove_partial(
      path_,
      [](const std::string& name) {
        return is_file_of_run(name) || name == job_name || name == checkpoint::latest_file;
      },
      std::chrono::hours(0));
  write_jobs(path_ / job_name, jobs_);
  if (!opening.is_continued) sys::remove_all(path_ / result_name);
  metrics_.emplace(path_ / metrics_name,
                   opening.repeats_row ? opening.resumed_at - 1 : opening.resumed_at);
  // A later round would write the same file.
  if (!opening.is_continued || !sys::exists(path_ / config_name))
    write_config(path_ / config_name, configuration_);
}

void RunFolder::make_room(const Opening& opening) {
  if (opening.resumed_at > 0) return set_aside_newer(opening.resumed_at);
  if (options_.overwrite) return remove_runs();
  set_aside_unfinished();
}

// Removes only files whose names belong to runs; other files in the folder stay.
void RunFolder::remove_runs() {
  std::vector<fs::path> left = checkpoint::list_checkpoints(path_);
  std::ranges::reverse(left);  // oldest last, so that a run can be resumed until the end
  for (fs::path& path : sys::entries_in(path_)) {
    const std::string name = path.filename().string();
    const bool is_own_fence = fence_ && name == ".round";
    if (is_left_by_run(name) && !is_own_fence) left.push_back(std::move(path));
  }
  if (left.empty()) return;
  std::vector<std::string> names;
  for (const fs::path& path : left) {
    sys::remove_all(path);
    names.push_back(path.filename().string());
  }
  notices_.push_back(formatted("--overwrite: removed from {}: {}", path_.string(), join(names)));
}

// Moves the newest files first, and rows of metrics last: if the run is killed in between, a plain
// --resume continues from the remaining files.
void RunFolder::set_aside_newer(std::int64_t step) {
  const std::string why = "the run goes on from an older checkpoint";
  std::vector<fs::path> folders = checkpoint::list_checkpoints(path_);
  auto chosen = std::ranges::find(folders, path_ / checkpoint::checkpoint_name(step));
  if (chosen != folders.end())
    for (auto folder = folders.end() - 1; folder != chosen; --folder) set_aside(*folder, why);
  if (!folders.empty()) checkpoint::point_latest(path_);
  for (const fs::path& file : {path_ / model_name, best_file()})
    if (sys::exists(file) && step_of_model(file) > step) set_aside(file, why);
}

// Moves the files of a run that was killed before its first checkpoint.
void RunFolder::set_aside_unfinished() {
  const std::string why = "the run before had saved no checkpoint";
  std::error_code is_unknown;
  if (fs::file_size(path_ / metrics_name, is_unknown) > 0 && !is_unknown)
    set_aside(path_ / metrics_name, why);
  for (const char* model : {model_name, best_name})
    if (sys::exists(path_ / model)) set_aside(path_ / model, why);
  for (const fs::path& path : sys::entries_in(path_))
    if (is_flight_record(path.filename().string())) set_aside(path, why);
}

void RunFolder::set_aside(const fs::path& path, const std::string& why) {
  fs::path aside = abandoned_name(path);
  sys::rename_durably(path, aside);
  notices_.push_back(formatted("{} is now {}: {}", path.string(), aside.filename().string(), why));
}

void RunFolder::write_result(const std::string& line) const {
  check();
  sys::AtomicFile::write(path_ / result_name, line + "\n");
}

}  // namespace lockstep::train
