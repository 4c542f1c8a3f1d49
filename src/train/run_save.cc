// Saving a run, handling write errors, and resuming a run from a checkpoint or an earlier round:
// checks and messages.
#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/folders.h"
#include "module/checks.h"
#include "sys/files.h"
#include "train/configuration.h"
#include "train/device.h"
#include "train/run.h"
#include "train/strategies.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <algorithm>
#include <limits>

namespace lockstep::train {
namespace {

const std::string& text_in(const checkpoint::Metadata& progress, const std::string& name) {
  auto found = progress.find(name);
  check_input(found != progress.end(), "expected progress.{}, found none", name);
  return found->second;
}

constexpr double infinite = std::numeric_limits<double>::infinity();

// Returns a number from `least` to 10^15, or any number if `least` is not given.
double number_in(const checkpoint::Metadata& progress, const std::string& name,
                 double least = -infinite) {
  const std::string& text = text_in(progress, name);
  if (text == "inf" && least == -infinite) return infinite;
  std::optional<double> value = parse_number(text);
  check_input(value.has_value() && *value >= least && (least == -infinite || *value <= 1e15),
              "progress.{}: expected a number, found '{}'", name, escaped(text));
  return *value;
}

// Entry of TrainingState::progress: Task::steps_per_epoch().
constexpr const char* steps_per_epoch_entry = "steps_per_epoch";

std::string entry_of(const checkpoint::Metadata& entries, const std::string& name) {
  const auto found = entries.find(name);
  return found == entries.end() ? std::string() : found->second;
}

}  // namespace

bool Run::may_fail(const std::function<void()>& action) {
  if (options_.on_save_error == OnSaveError::stop) {
    action();
    return true;
  }
  try {
    action();
    return true;
  } catch (const CollectiveFailure& failure) {
    if (world_.is_root())
      progress_.say(formatted("not saved, and the run goes on: {}", failure.what()));
    return false;
  }
}

void Run::save() {
  auto began = Pace::Clock::now();
  // The previous checkpoint may have failed to be written; this one may still succeed.
  if (saver_) (void)may_fail([&] { saver_->wait(); });
  (void)may_fail([&] { save_now(); });
  pace_.leave_out(began);
}

// A repeated step would save an equal checkpoint.
bool Run::is_saved_already() {
  const std::string there = modules::text_of_root(
      world_, [&] { return std::string(sys::exists(checkpoint_folder(step_)) ? "yes" : ""); });
  return !there.empty();
}

void Run::commit() {
  if (!has_round() || signal_ != 0) return;  // a run that is stopping saves a checkpoint instead
  goodput_.count_step(numbers_);
  in_.round->commit({.handle = model_.handle(),
                     .optimizer = *model_.optimizer(),
                     .state = state(),
                     .options = {},
                     .own = {}},
                    [&] {
                      if (saved_step_ != step_) save();
                      if (saver_) (void)may_fail([&] { saver_->wait(); });
                    });
}

void Run::save_now() {
  if (has_round() && is_saved_already()) {
    saved_step_ = step_;
    return;
  }
  const checkpoint::SaveOptions how{.keep = options_.keep_checkpoints,
                                    .description = description(std::nullopt, false),
                                    .before_naming = fence()};
  model_.save(options_.out, state(), how, saver_ ? &*saver_ : nullptr);
  saved_step_ = step_;
}

// Rank 0 of a later round may already write into the folder.
std::function<void()> Run::fence() {
  if (!has_round()) return {};
  return [this] { folder_.check(); };
}

// Returns once the last checkpoint is on the disk; throws if it cannot be saved.
void Run::finish_saving() {
  const bool was_tried = saved_step_ == step_;
  if (!was_tried && saver_) (void)may_fail([&] { saver_->wait(); });
  if (!was_tried) save_now();
  if (saver_) saver_->wait();
}

checkpoint::TrainingState Run::state() const {
  checkpoint::TrainingState state{.step = step_,
                                  .epoch = epoch(),
                                  .numbers = numbers_,
                                  .progress = {{"seconds", formatted("{}", pace_.seconds())},
                                               {"best", formatted("{}", stopping_.best)},
                                               {"waited", formatted("{}", stopping_.waited)},
                                               {"data_fingerprint", data_fingerprint_}},
                                  .config = configuration_.kept()};
  if (const std::string& kind = model_.facts().kind; !kind.empty())
    state.progress[kind_entry] = kind;
  state.progress[steps_per_epoch_entry] = formatted("{}", steps_per_epoch_);
  keep_description(state.progress, task_);
  if (left_out_) state.progress[left_out_loss] = formatted("{}", loss_);
  if (scaler_.enabled()) {
    state.progress["loss_scale"] = formatted("{}", scaler_.state().scale);
    state.progress["loss_scale_steps"] = formatted("{}", scaler_.state().good_steps);
  }
  return state;
}

std::optional<checkpoint::TrainingState> Run::shared_state() {
  const std::string folder = modules::text_of_root(world_, [&] {
    const auto found = is_continued_ ? folder_.newest_checkpoint() : folder_.find_checkpoint();
    return found ? found->string() : std::string();
  });
  if (auto committed = committed_state(folder)) return committed;
  if (folder.empty()) return std::nullopt;
  folder_.verify(world_, folder);
  begins_from_ = folder;
  return checkpoint::read_training_state(world_, folder);
}

// Returns the state that the last round has committed in memory, or std::nullopt if a checkpoint is
// newer, which may happen with several hosts.
std::optional<checkpoint::TrainingState> Run::committed_state(
    const std::filesystem::path& checkpoint) {
  if (!has_round()) return std::nullopt;
  const std::filesystem::path committed = in_.round->commits().newest();
  if (committed.empty()) return std::nullopt;
  checkpoint::TrainingState state = checkpoint::read_training_state(world_, committed);
  if (!checkpoint.empty() && checkpoint::step_of(checkpoint) > state.step) return std::nullopt;
  begins_from_ = committed;
  return state;
}

void Run::restore_task(const checkpoint::TrainingState& state) {
  check_same_model(configuration_, state);
  in_file(begins_from_ / "layout.json", [&] { task_.restore(kept_description(state.progress)); });
}

void Run::check_same_data(const checkpoint::TrainingState& state) const {
  if (options_.allow_other_data) return;
  const std::string& before = text_in(state.progress, "data_fingerprint");
  check_input(
      before == data_fingerprint_,
      "{}: expected the data that the checkpoint was made with ({}), found other data ({}); "
      "--allow-other-data goes on with it",
      configuration_.data_text(), escaped(before), data_fingerprint_);
}

void Run::restore(const checkpoint::TrainingState& state) {
  run_on_all_or_fail(world_, [&] {
    check_progress(state);
    in_file(begins_from_ / "layout.json", [&] { restore_progress(state); });
  });
  step_ = state.step;
  if (begins_from_ == checkpoint_folder(step_)) saved_step_ = step_;
  model_.load(begins_from_);
  // If the mesh differs, the saved per-rank states belong to ranks that computed other parts.
  const checkpoint::Metadata own = configuration_.kept();
  if (state.ranks != model_.facts().processes ||
      entry_of(state.config, "mesh") != entry_of(own, "mesh"))
    seed_generators(model_.device(),
                    seed_of_rank(options_.seed + step_, model_.facts().random_stream));
  restore_best(state);
}

// Counts steps that were begun but are not in the state from which the round continues.
void Run::count_lost_steps() {
  if (!has_round() || !in_.round->has_agent()) return;
  const std::int64_t begun =
      std::ranges::max(modules::numbers_of_all(world_, {*in_.begun}, {.tag = "steps begun"}));
  numbers_[lost_steps] += static_cast<double>(std::max<std::int64_t>(0, begun - step_));
  *in_.begun = step_;
}

// A number of steps is a number of epochs only if epochs have as many steps as before.
void Run::check_progress(const checkpoint::TrainingState& state) const {
  const auto each = state.progress.find(steps_per_epoch_entry);
  const std::string own = formatted("{}", steps_per_epoch_);
  check_input(
      options_.epochs == 0 || each == state.progress.end() || each->second == own,
      "--resume: the checkpoint's epochs have {} steps, those of this run (--batch {}) have "
      "{}, so its {} steps are other epochs: expected the same --batch and as much data, or "
      "--steps instead of --epochs",
      each == state.progress.end() ? "" : escaped(each->second), options_.batch, own, state.step);
  check_input(state.step <= steps_,
              "--resume: the checkpoint is at step {} already, expected --{} that make more steps "
              "than that, found {}",
              state.step, options_.steps > 0 ? "steps" : "epochs",
              options_.steps > 0 ? options_.steps : options_.epochs);
}

void Run::restore_progress(const checkpoint::TrainingState& state) {
  seconds_before_ = number_in(state.progress, "seconds", 0);
  numbers_ = state.numbers;
  stopping_.best = number_in(state.progress, "best");
  stopping_.waited = static_cast<std::int64_t>(number_in(state.progress, "waited", 0));
  left_out_ = state.progress.contains(left_out_loss);
  if (left_out_) loss_ = number_in(state.progress, left_out_loss);
  // If a run changes to float16 from another precision, it begins with a new scale.
  if (!scaler_.enabled() || !state.progress.contains("loss_scale")) return;
  scaler_.load_state(
      {.scale = number_in(state.progress, "loss_scale"),
       .good_steps = static_cast<std::int64_t>(number_in(state.progress, "loss_scale_steps", 0))});
}

std::filesystem::path Run::checkpoint_folder(std::int64_t step) const {
  return std::filesystem::path(options_.out) / checkpoint::checkpoint_name(step);
}

void Run::say_notices() {
  if (!world_.is_root()) return;
  for (const std::string& line : folder_.take_notices()) progress_.say(line);
}

void Run::say_round() {
  if (!world_.is_root()) return;
  progress_.say(formatted("round {}: goes on at step {} of {} on {}", in_.round->number(), step_,
                          steps_, counted(world_.size(), "rank")));
}

void Run::say_resumed(const checkpoint::TrainingState& state) {
  if (!world_.is_root()) return;
  progress_.say(formatted("resumed at step {} of {}", step_, steps_));
  std::string changes = changes_since(configuration_, model_.facts().processes, state);
  if (state.progress.at("data_fingerprint") != data_fingerprint_)
    changes += formatted("{}the data itself", changes.empty() ? "" : ", ");
  if (!changes.empty()) progress_.say(formatted("changed since the checkpoint: {}", changes));
}

std::string Run::command_to_go_on() const {
  std::string command = resume_command(configuration_, "--resume");
  const bool are_started_here = options_.ranks > 0 || usual_ranks(options_) > 1;
  if (world_.size() > 1 && !are_started_here) command += " (by the same launcher)";
  return command;
}

}  // namespace lockstep::train
