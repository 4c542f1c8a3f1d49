// What Run does about a checkpoint: whether it fits, and what is said of it.
#include "base/check.h"
#include "base/counted.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/visible.h"
#include "train/run.h"

#include "checkpoint/folders.h"
#include "train/option_table.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/together.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace lockstep::train {
namespace {

const std::string& text_in(const checkpoint::Metadata& progress, const std::string& name) {
  auto found = progress.find(name);
  check_input(found != progress.end(), "expected progress.{}, found none", name);
  return found->second;
}

constexpr double infinite = std::numeric_limits<double>::infinity();

// From `least` to 10^15, or any number where no `least` is given.
double number_in(const checkpoint::Metadata& progress, const std::string& name,
                 double least = -infinite) {
  const std::string& text = text_in(progress, name);
  if (text == "inf" && least == -infinite) return infinite;
  std::optional<double> value = parse_number(text);
  check_input(value.has_value() && *value >= least && (least == -infinite || *value <= 1e15),
              "progress.{}: expected a number, found '{}'", name, visible(text));
  return *value;
}

}  // namespace

std::optional<checkpoint::TrainingState> Run::shared_state() {
  std::string folder;
  together(world_, [&] {
    if (!world_.is_root()) return;
    auto found = is_continued_ ? folder_.newest_checkpoint() : folder_.find_checkpoint();
    if (found) folder = found->string();
  });
  folder = broadcast_text(world_, std::move(folder));
  if (auto committed = committed_state(folder)) return committed;
  if (folder.empty()) return std::nullopt;
  folder_.verify(world_, folder);
  begins_from_ = folder;
  return checkpoint::read_training_state(world_, folder);
}

// What the last round has committed in memory, unless a checkpoint is newer: that of a round on
// several hosts.
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

void Run::load_data(const std::optional<checkpoint::TrainingState>& state) {
  if (state) {
    check_same_model(configuration_, *state);
    in_file(begins_from_ / "layout.json",
            [&] { task_.restore(kept_description(state->progress)); });
  }
  try {
    // In an elastic run each rank reads all rows of a batch, also those that others compute.
    const bool is_there = has_round() && std::exchange(*in_.has_data, true);
    if (!is_there) task_.load(options_, options_.elastic ? Group() : strategy_.facts().learners);
  } catch (const BadInput& error) {
    throw BadInput(error.what() + configuration_.place_of_data());
  }
  data_fingerprint_ = task_.data_fingerprint();
  check(is_utf8(data_fingerprint_), "Task::data_fingerprint: expected UTF-8, found '{}'",
        visible(data_fingerprint_));
  if (!state || options_.allow_other_data) return;
  const std::string& before = text_in(state->progress, "data_fingerprint");
  check_input(
      before == data_fingerprint_,
      "{}: expected the data that the checkpoint was made with ({}), found other data ({}); "
      "--allow-other-data goes on with it",
      configuration_.data_text(), visible(before), data_fingerprint_);
}

void Run::compare_data() {
  at::Tensor mine =
      at::empty({1}, at::kLong).fill_(static_cast<std::int64_t>(fingerprint(data_fingerprint_)));
  at::Tensor all = at::empty({world_.size()}, at::kLong);
  world_.all_gather(all, mine).wait();
  std::span<const std::int64_t> prints(all.const_data_ptr<std::int64_t>(), world_.size());
  auto other = std::ranges::find_if(prints, [&](auto print) { return print != prints[0]; });
  if (other == prints.end()) return;
  int rank = static_cast<int>(other - prints.begin());
  throw CommonFailure(formatted("{}: expected the same data on all ranks, rank {} has read other "
                                "data than rank 0",
                                configuration_.data_text(), rank),
                      rank);
}

void Run::check_progress(const checkpoint::TrainingState& state) const {
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
  // A run that goes on in float16 after another precision begins with a new scale.
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
  std::string changes = changes_since(configuration_, strategy_.facts().processes, state);
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
