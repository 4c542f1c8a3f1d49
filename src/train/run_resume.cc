// What Run does about a checkpoint: whether it fits, and what is said of it.
#include "base/check.h"
#include "base/fingerprint.h"
#include "base/visible.h"
#include "train/run.h"

#include "train/checkpoint_fit.h"
#include "train/resume_command.h"

#include <lockstep/comm/together.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

namespace lockstep::train {

void Run::load_data(const std::optional<checkpoint::TrainingState>& state) {
  auto progress = [&](const std::string& name) {
    auto found = state->progress.find(name);
    check_input(found != state->progress.end(), "checkpoint: expected progress.{}, found none",
                name);
    return found->second;
  };
  if (state) check_same_model(options_, *state);
  try {
    task_->load(state ? progress("data") : std::string());
  } catch (const BadInput& error) {
    if (options_.data_place.empty()) throw;
    throw BadInput(formatted("{} (data is set in {})", error.what(), options_.data_place));
  }
  data_fingerprint_ = task_->data_fingerprint();
  if (!state || options_.allow_other_data) return;
  std::string before = progress("data_fingerprint");
  check_input(
      before == data_fingerprint_,
      "{}: expected the data that the checkpoint was made with ({}), found other data ({}); "
      "--allow-other-data goes on with it",
      options_.data.empty() ? "the task's data" : options_.data, visible(before),
      data_fingerprint_);
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
  throw CommonFailure(formatted("--data {}: expected the same data on all ranks, rank {} has read "
                                "other data than rank 0",
                                options_.data, rank),
                      rank);
}

void Run::check_progress(const checkpoint::TrainingState& state) const {
  check_input(state.step <= steps_,
              "--resume: the checkpoint is at step {} already, expected --{} that make more steps "
              "than that, found {}",
              state.step, options_.steps > 0 ? "steps" : "epochs",
              options_.steps > 0 ? options_.steps : options_.epochs);
}

std::filesystem::path Run::checkpoint_folder(std::int64_t step) const {
  return std::filesystem::path(options_.out) / checkpoint::checkpoint_name(step);
}

void Run::say_notices() {
  if (!world_.is_root()) return;
  for (const std::string& line : folder_.take_notices()) progress_.say(line);
}

void Run::say_resumed(const checkpoint::TrainingState& state) {
  if (!world_.is_root()) return;
  progress_.say(formatted("resumed at step {} of {}", step_, steps_));
  std::string changes = changes_since(options_, world_.size(), state);
  if (state.progress.at("data_fingerprint") != data_fingerprint_)
    changes += formatted("{}the data itself", changes.empty() ? "" : ", ");
  if (!changes.empty()) progress_.say(formatted("changed since the checkpoint: {}", changes));
}

std::string Run::stopped_line() const {
  std::string command = resume_command(options_, "--resume");
  if (world_.size() > 1 && options_.ranks == 0) command += " (by the same launcher)";
  return formatted("stopped: signal={} steps={} seconds={:.1f} weights={} resume with: {}", signal_,
                   step_, seconds(), (checkpoint_folder(step_) / "model.safetensors").string(),
                   command);
}

}  // namespace lockstep::train
