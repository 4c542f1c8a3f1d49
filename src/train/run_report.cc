// Evaluation during a run (validation loss, the best model, samples), and the output of a run: rows
// of metrics, the progress line, the last line.
#include "base/format.h"
#include "base/log.h"
#include "base/scope_exit.h"
#include "module/checks.h"
#include "sys/process.h"
#include "train/configuration.h"
#include "train/run.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <csignal>
#include <exception>

namespace lockstep::train {
namespace {

constexpr std::int64_t usual_sample = 200;  // tokens

}  // namespace

void Run::report() {
  if (left_out_) return;
  bool due = evaluated_step_ == step_ || sampled_step_ == step_ ||
             step_ % options_.log_every == 0 || step_ == steps_;
  if (due) pace_.read(world_, model_.bytes_held(), model_.device());
  const MetricsRow now = row();
  if (due)
    (void)may_fail([&] { modules::run_on_root_or_fail(world_, [&] { folder_.append(now); }); });
  if (!world_.is_root()) return;
  progress_.show(now);
  if (now.sample) progress_.say(formatted("sample at step {}:\n{}", step_, *now.sample));
}

MetricsRow Run::row() const {
  MetricsRow row = pace_.row();
  row.step = step_;
  row.steps = steps_;
  row.epoch = (step_ - 1) / steps_per_epoch_;
  row.loss = loss_;
  row.lr = lr_;
  if (std::int64_t tokens = task_.tokens_per_sample(); tokens > 0)
    row.tokens_per_second = row.samples_per_second * static_cast<double>(tokens);
  if (const double flops = task_.flops_per_sample(); flops > 0 && options_.peak_tflops > 0)
    row.mfu =
        row.samples_per_second * flops / (options_.peak_tflops * 1e12 * model_.facts().processes);
  if (evaluated_step_ == step_) {
    row.val_loss = evaluation_->loss;
    if (task_.has_accuracy()) row.accuracy = evaluation_->accuracy;
    if (evaluation_is_partial_) row.eval_batches = options_.eval_batches;
  }
  if (sampled_step_ == step_) row.sample = sample_;
  if (scaler_.enabled()) row.loss_scale = scaler_.current_scale();
  if (row.samples_per_second > 0)
    row.seconds_left = static_cast<double>(steps_ - step_) * static_cast<double>(options_.batch) /
                       row.samples_per_second;
  return row;
}

Report Run::finish() {
  model_.meet(/*shows_model=*/true);
  std::exception_ptr no_trace;  // thrown at the end: first the run is saved
  try {
    run_on_all_or_fail(world_, [&] { trace_.write(); });
  } catch (const CollectiveFailure&) {
    no_trace = std::current_exception();
  }
  if (signal_ == 0) finish_well();
  finish_saving();
  Report report{.step = step_,
                .seconds = pace_.seconds(),
                .signal = signal_,
                .stopped_early = signal_ == 0 && step_ < steps_};
  if (evaluation_) report.val_loss = evaluation_->loss;
  if (evaluation_ && task_.has_accuracy()) report.accuracy = evaluation_->accuracy;
  report.last_line = last_line();
  if (signal_ != 0) report.resume_command = command_to_go_on();
  if (world_.is_root()) say_end(report);
  modules::run_on_root_or_fail(world_, [&] { folder_.write_result(report.last_line); });
  if (no_trace) std::rethrow_exception(no_trace);
  return report;
}

void Run::say_end(const Report& report) {
  std::vector<std::string> lines;
  if (signal_ != 0) lines.push_back(formatted("resume with: {}", report.resume_command));
  lines.push_back(report.last_line);
  for (const std::string& line : lines) {
    progress_.say(line);
    if (signal_ == SIGPIPE) print_to(stderr, "{}\n", line);  // standard output has no reader
  }
}

void Run::finish_well() {
  if (evaluated_step_ != step_) evaluate();
  if (signal_ != 0) return;
  export_model("model", evaluation_, evaluation_is_partial_);
  if (options_.sample == 0 || sampled_step_ == step_) return;
  try {
    const std::string text = interruptible_sample(options_.sample);
    if (world_.is_root()) progress_.say(text);
  } catch (const Interrupted&) {
    // Ignored: the last line says that the run was stopped.
  }
}

std::string Run::last_line() const {
  if (signal_ != 0)
    return formatted("stopped: signal={} steps={} seconds={:.1f} weights={}",
                     sys::signal_name(signal_), step_, pace_.seconds(),
                     (checkpoint_folder(step_) / "model.safetensors").string());
  std::string line = "done:";
  if (task_.has_accuracy()) line += formatted(" accuracy={:.4f}", evaluation_->accuracy);
  line += formatted(" val_loss={}", loss_text(evaluation_->loss));
  for (const auto& [name, value] : task_.results()) line += formatted(" {}={}", name, value);
  for (const auto& [name, value] : model_.results()) line += formatted(" {}={}", name, value);
  if (options_.epochs > 0) line += formatted(" epochs={}", epoch());
  line += formatted(" steps={} seconds={:.1f}", step_, pace_.seconds());
  if (has_round() && in_.round->has_agent())
    line +=
        formatted(" goodput={:.3f} lost_steps={:.0f}", goodput_.share(), numbers_.at(lost_steps));
  if (best_.step < 0) return line;
  return line + formatted(" best_val_loss={} best_step={} best={}", loss_text(best_.val_loss),
                          best_.step, folder_.best_file().string());
}

Evaluator::Options Run::how_to_evaluate() {
  const bool in_step = model_.facts().in_step;
  return {.batches = options_.eval_batches,
          .in_step = in_step,
          .parts = options_.elastic ? options_.elastic_micro_batches : 0,
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
  // A best model of a later step does not count: steps after the checkpoint are repeated.
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
    // Interrupted: the row has no sample.
  }
  pace_.leave_out(began);
}

}  // namespace lockstep::train
