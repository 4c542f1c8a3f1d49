// Evaluation during a run: validation loss, the best model, samples.
#include "base/format.h"
#include "base/scope_exit.h"
#include "train/run.h"
#include "train/run_description.h"

#include <lockstep/checkpoint/checkpoint.h>

namespace lockstep::train {
namespace {

constexpr std::int64_t usual_sample = 200;  // tokens

}  // namespace

Evaluator::Options Run::how_to_evaluate() {
  const bool in_step = model_.facts().in_step;
  return {.batches = options_.eval_batches,
          .in_step = in_step,
          .parts = options_.elastic ? options_.slots : 0,
          .compute_dtype = batch_dtype(options_),
          .device = model_.device(),
          .tell =
              [&](double share) {
                if (!world_.is_root()) return;
                progress_.show_text(
                    formatted("step {}/{}  evaluating {:.0f}%", step_, steps_, 100 * share));
              },
          .measure = [&](const Batch& batch) { return model_.measure(batch); },
          .stops = [this, in_step] { return in_step ? signal_came() : interrupt_->signal() != 0; }};
}

void Run::evaluate() {
  if (signal_ != 0) {
    left_out_ = true;
    return;
  }
  auto began = Pace::Clock::now();
  try {
    evaluate_now();
  } catch (const Interrupted&) {
    if (signal_ == 0) (void)signal_came();
    left_out_ = true;
  }
  pace_.leave_out(began);
}

void Run::evaluate_now() {
  bool is_partial = evaluator_->is_partial();
  const Evaluation chosen = evaluator_->chosen();
  EarlyStopping stopping = stopping_;
  (void)stopping.update(chosen.loss);
  const bool is_last = step_ >= steps_ || stopping.should_stop();
  const Evaluation found = is_partial && is_last ? evaluator_->whole() : chosen;
  stopping_ = stopping;
  const Best before = best_;
  if (best_.update(chosen.loss, step_) &&
      !may_fail([&] { export_model("best", chosen, is_partial); }))
    best_ = before;
  evaluation_ = found;
  evaluation_is_partial_ = is_partial && !is_last;
  evaluated_step_ = step_;
}

void Run::make_up() {
  if (!left_out_) return;
  left_out_ = false;
  lr_ = schedule_(options_.lr, step_ - 1);
  model_.meet(/*shows_model=*/true);
  if (evaluation_is_due()) evaluate();
  if (sample_is_due()) sample();
  report();
}

void Run::restore_best(const checkpoint::TrainingState& state) {
  std::optional<std::int64_t> batches;
  if (evaluator_->is_partial()) batches = options_.eval_batches;
  // Steps after the checkpoint are repeated.
  best_ = read_best(world_, folder_.best_file(), basis_of(data_fingerprint_, batches), state.step);
  auto measured = state.config.find("eval-batches");
  bool is_comparable = state.progress.at("data_fingerprint") == data_fingerprint_ &&
                       measured != state.config.end() &&
                       measured->second == formatted("{}", options_.eval_batches);
  if (!is_comparable) stopping_ = {.patience = options_.patience};
}

checkpoint::Metadata Run::description(const std::optional<Evaluation>& evaluation,
                                      bool is_partial) const {
  checkpoint::Metadata entries = model_description(configuration_, step_);
  std::optional<std::int64_t> batches;
  if (is_partial) batches = options_.eval_batches;
  entries.merge(basis_of(data_fingerprint_, batches));
  if (evaluation) entries["val_loss"] = formatted("{}", evaluation->loss);
  return entries;
}

// Collective.
void Run::export_model(const std::string& name, const std::optional<Evaluation>& evaluation,
                       bool is_partial) {
  checkpoint::save_model(
      std::filesystem::path(options_.out) / (name + ".safetensors"), model_.handle(),
      {.metadata = description(evaluation, is_partial), .aliases = true, .before_naming = fence()});
}

// Called on all ranks, because the model may be sharded.
std::string Run::interruptible_sample(std::int64_t length) {
  task_.set_interrupt_check([this] {
    if (signal_came()) throw Interrupted();
  });
  const ScopeExit unset([this] { task_.set_interrupt_check({}); });
  return model_.sample(length);
}

void Run::sample() {
  if (signal_ != 0) return;
  auto began = Pace::Clock::now();
  try {
    sample_ = interruptible_sample(options_.sample > 0 ? options_.sample : usual_sample);
    sampled_step_ = step_;
  } catch (const Interrupted&) {
    // The row has no sample then.
  }
  pace_.leave_out(began);
}

}  // namespace lockstep::train
