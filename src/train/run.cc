#include "train/run.h"

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "base/visible.h"
#include "train/checkpoint_fit.h"
#include "train/memory_need.h"
#include "train/model_description.h"
#include "train/optimizers.h"
#include "train/random_streams.h"

#include "sys/resident.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/together.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/sharded/deferred.h>

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

namespace lockstep::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

// A checkpoint that is named is one to go on from.
Options with_resume(Options options) {
  options.resume = options.resume || !options.resume_from.empty();
  return options;
}

}  // namespace

Run::Run(const Options& options, Group world)
    : options_(with_resume(options)), world_(std::move(world)), folder_(options_) {
  together(world_, [&] { check_options(options_, world_.size()); });
  if (options_.threads > 0) at::set_num_threads(static_cast<int>(options_.threads));
  std::optional<checkpoint::TrainingState> state = shared_state();
  begin(state);
  if (state) restore(*state);
  together(world_, [&] {
    if (world_.is_root()) folder_.open(step_);
  });
  if (state) say_resumed(*state);
  say_notices();
  started_ = reported_at_ = Clock::now();
}

std::optional<checkpoint::TrainingState> Run::shared_state() {
  std::string folder;
  together(world_, [&] {
    if (!world_.is_root()) return;
    if (auto found = folder_.find_checkpoint()) folder = found->string();
  });
  folder = broadcast_text(world_, std::move(folder));
  if (folder.empty()) return std::nullopt;
  return checkpoint::read_training_state(world_, folder);
}

void Run::begin(const std::optional<checkpoint::TrainingState>& state) {
  task_ = make_task(options_, world_);
  together(world_, [&] {
    load_data(state);
    check_memory(options_, {.parameters = task_->parameters(), .activations = task_->activations()},
                 world_.size());
    torch::manual_seed(static_cast<std::uint64_t>(options_.seed));
    if (options_.deferred) {
      deferred([&] { task_->make_model(); });
    } else {
      task_->make_model();
    }
  });
  compare_data();
  handle_ = make_handle(options_, *task_, world_);
  optimizer_ = make_optimizer(options_, handle_);
  torch::manual_seed(stream_seed(options_.seed, seed_stream_of_rank(world_.rank())));
  steps_per_epoch_ = task_->steps_per_epoch();
  steps_ = options_.steps > 0 ? options_.steps : options_.epochs * steps_per_epoch_;
  schedule_ = schedule_of(options_, steps_, steps_per_epoch_);
  stopping_.patience = options_.patience;
  evaluator_.emplace(*task_, world_, options_.eval_batches,
                     /*in_step=*/options_.shard != "none", [&](double share) {
                       progress_.show_text(
                           formatted("step {}/{}  evaluating {:.0f}%", step_, steps_, 100 * share));
                     });
}

void Run::restore(const checkpoint::TrainingState& state) {
  together(world_, [&] {
    check_progress(state);
    in_file(checkpoint_folder(state.step) / "training.json", [&] {
      seconds_before_ = number_in(state.progress, "seconds", 0);
      stopping_.best = number_in(state.progress, "best");
      stopping_.waited = static_cast<std::int64_t>(number_in(state.progress, "waited", 0));
    });
  });
  step_ = saved_step_ = reported_step_ = state.step;
  // The folder was verified when it was chosen.
  (void)checkpoint::load(checkpoint_folder(step_), handle_, *optimizer_, {.verify = false});
  if (state.ranks != world_.size())
    torch::manual_seed(stream_seed(options_.seed + step_, seed_stream_of_rank(world_.rank())));
  restore_best(state);
}

void Run::step() {
  lr_ = learning_rate(schedule_, step_);
  set_learning_rate(*optimizer_, lr_);
  Batch batch = task_->batch(step_);
  double waited_before = handle_.seconds_waited();
  handle_.zero_grad();
  double loss = backward(batch);
  optim::GradientTransform transform;
  if (options_.clip > 0) transform.clip_norm = options_.clip;
  optim::step_transformed(*optimizer_, transform);
  if (options_.reduce_in_step) handle_.zero_grad();  // or an evaluation computes averages for all
  ++step_;
  waited_ += handle_.seconds_waited() - waited_before;
  agree(loss, batch.data.size(0));
}

double Run::backward(const Batch& batch) {
  std::vector<at::Tensor> data = batch.data.chunk(options_.accumulate);
  std::vector<at::Tensor> target = batch.target.chunk(options_.accumulate);
  double sum = 0;
  for (std::size_t part = 0; part < data.size(); ++part) {
    std::optional<NoSync> accumulating;
    if (part + 1 < data.size()) accumulating.emplace(handle_.no_sync());
    at::Tensor loss = task_->loss({data[part], target[part]});
    double share =
        static_cast<double>(data[part].size(0)) / static_cast<double>(batch.data.size(0));
    sum += loss.item<double>() * share;
    (share == 1 ? loss : loss * share).backward();
  }
  return sum;
}

void Run::agree(double loss, std::int64_t rows) {
  auto weight = static_cast<double>(rows);
  at::Tensor sums =
      at::tensor({loss * weight, weight, interrupt_.signal() != 0 ? 1.0 : 0.0}, at::kDouble);
  world_.all_reduce(sums, Op::sum, {.tag = "loss"}).wait();
  const double* values = sums.const_data_ptr<double>();
  loss_ = values[0] / values[1];
  samples_ += std::llround(values[1]);
  if (values[2] > 0) {
    at::Tensor signal = at::tensor({interrupt_.signal()}, at::kInt);
    world_.all_reduce(signal, Op::max, {.tag = "signal"}).wait();
    signal_ = signal.item<int>();
  }
  if (!std::isfinite(loss_))
    throw CommonFailure(
        formatted("step {}: expected a finite loss, found {} (lr {})", step_, loss_, lr_), 0);
}

bool Run::is_due(std::int64_t every) const {
  if (every > 0) return step_ % every == 0;
  return options_.epochs > 0 && step_ % steps_per_epoch_ == 0;
}

void Run::report() {
  bool evaluated = evaluated_step_ == step_;
  bool sampled = sampled_step_ == step_;
  bool due = evaluated || sampled || step_ % options_.log_every == 0 || step_ == steps_;
  if (due) {
    samples_per_second_ =
        static_cast<double>(samples_) / std::max(1e-9, seconds_since(reported_at_));
    samples_ = 0;
    usage_ = usage();
    reported_at_ = Clock::now();
  }
  std::optional<double> val_loss, accuracy, tokens_per_second;
  if (std::int64_t tokens = task_->tokens_per_sample(); tokens > 0)
    tokens_per_second = samples_per_second_ * static_cast<double>(tokens);
  if (evaluated) val_loss = evaluation_->loss;
  if (evaluated && task_->has_accuracy()) accuracy = evaluation_->accuracy;
  if (due) {
    together(world_, [&] {
      if (!world_.is_root()) return;
      folder_.append({.step = step_,
                      .epoch = (step_ - 1) / steps_per_epoch_,
                      .loss = loss_,
                      .val_loss = val_loss,
                      .accuracy = accuracy,
                      .eval_batches = evaluated && evaluation_is_partial_
                                          ? std::optional(options_.eval_batches)
                                          : std::nullopt,
                      .lr = lr_,
                      .samples_per_second = samples_per_second_,
                      .tokens_per_second = tokens_per_second,
                      .resident_bytes = usage_.resident_bytes,
                      .model_bytes = usage_.model_bytes,
                      .exposed_seconds = usage_.exposed_seconds,
                      .seconds = seconds(),
                      .sample = sampled ? std::optional(sample_) : std::nullopt});
    });
  }
  if (!world_.is_root()) return;
  std::optional<double> left;
  if (samples_per_second_ > 0)
    left = static_cast<double>((steps_ - step_) * options_.batch) / samples_per_second_;
  progress_.show({.step = step_,
                  .steps = steps_,
                  .loss = loss_,
                  .val_loss = val_loss,
                  .accuracy = accuracy,
                  .samples_per_second = samples_per_second_,
                  .tokens_per_second = tokens_per_second,
                  .resident_bytes = usage_.resident_bytes,
                  .exposed_seconds = usage_.exposed_seconds,
                  .seconds_left = left});
  if (sampled) progress_.say(formatted("sample at step {}:\n{}", step_, sample_));
}

// Where every step is reported, reading this anew each time would cost more than a small step.
std::int64_t Run::resident_bytes() {
  if (resident_bytes_ == 0 || seconds_since(resident_read_at_) > 1) {
    resident_bytes_ = sys::proportional_bytes();
    resident_read_at_ = Clock::now();
  }
  return resident_bytes_;
}

// Collective.
StepUsage Run::usage() {
  StepUsage own{.resident_bytes = resident_bytes(),
                .model_bytes = bytes_held(handle_, *optimizer_),
                .exposed_seconds = waited_ / static_cast<double>(std::max<std::int64_t>(
                                                 1, step_ - reported_step_))};
  waited_ = 0;
  reported_step_ = step_;
  return most_of_all(world_, own);
}

checkpoint::TrainingState Run::state() const {
  return {.step = step_,
          .epoch = epoch(),
          .progress = {{"seconds", formatted("{}", seconds())},
                       {"best", formatted("{}", stopping_.best)},
                       {"waited", formatted("{}", stopping_.waited)},
                       {"data", task_->data_identity()},
                       {"data_fingerprint", data_fingerprint_}},
          .config = kept_options(options_)};
}

void Run::save() {
  auto began = Clock::now();
  checkpoint::save(options_.out, handle_, *optimizer_, state(),
                   {.keep = options_.keep, .description = description(std::nullopt, false)});
  saved_step_ = step_;
  reported_at_ += Clock::now() - began;
}

Report Run::finish() {
  if (signal_ == 0) finish_well();
  if (saved_step_ != step_) save();
  Report report{.step = step_,
                .seconds = seconds(),
                .signal = signal_,
                .stopped_early = signal_ == 0 && step_ < steps_};
  if (evaluation_) report.val_loss = evaluation_->loss;
  if (evaluation_ && task_->has_accuracy()) report.accuracy = evaluation_->accuracy;
  report.last_line = last_line();
  if (world_.is_root()) {
    progress_.say(report.last_line);
    if (signal_ == SIGPIPE) print_to(stderr, "{}\n", report.last_line);  // nobody reads the other
    folder_.write_result(report.last_line);
  }
  world_.barrier().wait();
  return report;
}

void Run::finish_well() {
  if (evaluated_step_ != step_) evaluate();
  export_model("model", evaluation_, evaluation_is_partial_);
  if (options_.sample == 0 || sampled_step_ == step_) return;
  std::string text =
      task_->sample(options_.sample);  // on all ranks: they may have the model in parts
  if (world_.is_root()) progress_.say(text);
}

std::string Run::last_line() const {
  if (signal_ != 0) return stopped_line();
  std::string line = "done:";
  if (task_->has_accuracy()) line += formatted(" accuracy={:.4f}", evaluation_->accuracy);
  line += formatted(" val_loss={:.3f}", evaluation_->loss);
  for (const auto& [name, value] : task_->results()) line += formatted(" {}={}", name, value);
  if (options_.epochs > 0) line += formatted(" epochs={}", epoch());
  line += formatted(" steps={} seconds={:.1f}", step_, seconds());
  if (best_.step < 0) return line;
  return line + formatted(" best_val_loss={:.3f} best_step={} best={}", best_.val_loss, best_.step,
                          folder_.best_file().string());
}

double Run::seconds() const { return seconds_before_ + seconds_since(started_); }

}  // namespace lockstep::train
