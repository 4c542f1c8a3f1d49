// Saving a run, and handling write errors.
#include "base/format.h"
#include "train/run.h"
#include "train/run_description.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/together.h>

namespace lockstep::train {

bool Run::may_fail(const std::function<void()>& action) {
  if (options_.on_save_error == OnSaveError::stop) {
    action();
    return true;
  }
  try {
    action();
    return true;
  } catch (const CommonFailure& failure) {
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
  std::string there;
  together(world_, [&] {
    if (world_.is_root() && std::filesystem::exists(checkpoint_folder(step_))) there = "yes";
  });
  return !broadcast_text(world_, std::move(there)).empty();
}

void Run::commit() {
  if (!has_round() || signal_ != 0) return;  // a run that is stopping saves a checkpoint instead
  goodput_.count_step(numbers_);
  in_.round->commit({.handle = model_.handle(),
                     .optimizer = *model_.optimizer(),
                     .state = state(),
                     .options = {},
                     .own = {}});
}

void Run::save_now() {
  if (has_round() && is_saved_already()) {
    saved_step_ = step_;
    return;
  }
  const checkpoint::SaveOptions how{.keep = options_.keep,
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
  keep_description(state.progress, task_);
  if (left_out_) state.progress[left_out_loss] = formatted("{}", loss_);
  if (scaler_.enabled()) {
    state.progress["loss_scale"] = formatted("{}", scaler_.state().scale);
    state.progress["loss_scale_steps"] = formatted("{}", scaler_.state().good_steps);
  }
  return state;
}

}  // namespace lockstep::train
