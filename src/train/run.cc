#include "train/run.h"

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "base/visible.h"
#include "train/checkpoint_fit.h"
#include "train/memory_need.h"
#include "train/micro_batches.h"
#include "train/model_description.h"
#include "train/optimizers.h"
#include "train/option_settings.h"
#include "train/random_streams.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/together.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/sharded/deferred.h>

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>

#include <cmath>

namespace lockstep::train {
namespace {

// A checkpoint that is named is one to go on from.
Options with_resume(Options options) {
  options.resume = options.resume || !options.resume_from.empty();
  return options;
}

}  // namespace

Run::Run(Task& task, const Options& options, Group world)
    : configuration_(task, with_resume(options)),
      task_(task),
      world_(std::move(world)),
      folder_(configuration_),
      scaler_({.enabled = options.precision == "fp16"}) {
  together(world_, [&] { check_run(options_, task_, world_.size()); });
  if (options_.threads > 0) at::set_num_threads(static_cast<int>(options_.threads));
  std::optional<checkpoint::TrainingState> state = shared_state();
  begin(state);
  if (state) restore(*state);
  together(world_, [&] {
    if (world_.is_root()) folder_.open(step_);
  });
  if (state) say_resumed(*state);
  say_notices();
  pace_.start(seconds_before_);
}

void Run::begin(const std::optional<checkpoint::TrainingState>& state) {
  together(world_, [&] {
    load_data(state);
    check_memory(options_, {.parameters = task_.parameters(), .activations = task_.activations()},
                 world_.size());
    torch::manual_seed(static_cast<std::uint64_t>(options_.seed));
    if (options_.deferred) {
      module_ = deferred([&] { return task_.make_model(); });
    } else {
      module_ = task_.make_model();
    }
  });
  compare_data();
  handle_ = make_handle(options_, task_, module_, world_);
  optimizer_ = make_optimizer(options_, handle_);
  torch::manual_seed(stream_seed(options_.seed, seed_stream_of_rank(world_.rank())));
  steps_per_epoch_ = task_.steps_per_epoch();
  steps_ = options_.steps > 0 ? options_.steps : options_.epochs * steps_per_epoch_;
  schedule_ = schedule_of(options_, steps_, steps_per_epoch_);
  stopping_.patience = options_.patience;
  evaluator_.emplace(
      task_, module_, world_,
      Evaluator::Options{.batches = options_.eval_batches,
                         .in_step = options_.shard != "none",
                         .compute_dtype = compute_dtype(options_),
                         .tell = [&](double share) {
                           progress_.show_text(formatted("step {}/{}  evaluating {:.0f}%", step_,
                                                         steps_, 100 * share));
                         }});
}

void Run::restore(const checkpoint::TrainingState& state) {
  together(world_, [&] {
    check_progress(state);
    in_file(checkpoint_folder(state.step) / "training.json", [&] { restore_progress(state); });
  });
  step_ = saved_step_ = state.step;
  // The folder was verified when it was chosen.
  (void)checkpoint::load(checkpoint_folder(step_), handle_, *optimizer_, {.verify = false});
  if (state.ranks != world_.size())
    torch::manual_seed(stream_seed(options_.seed + step_, seed_stream_of_rank(world_.rank())));
  restore_best(state);
}

void Run::step() {
  lr_ = learning_rate(schedule_, step_);
  set_learning_rate(*optimizer_, lr_);
  Batch batch = task_.batch(step_);
  double waited_before = handle_.seconds_waited();
  StepTiming before = handle_.timing();
  handle_.zero_grad();
  double loss = backward(batch);
  StepTiming timing = handle_.timing();
  auto update_began = Pace::Clock::now();
  optim::GradientTransform transform;
  if (options_.clip > 0) transform.clip_norm = options_.clip;
  scaler_.step(*optimizer_, transform);
  scaler_.update();
  if (options_.reduce_in_step) handle_.zero_grad();  // or an evaluation computes averages for all
  ++step_;
  std::chrono::duration<double> update = Pace::Clock::now() - update_began;
  pace_.add_step(agree(loss, batch.data.size(0)),
                 {.forward = timing.forward - before.forward,
                  .backward = timing.backward - before.backward,
                  .exposed = handle_.seconds_waited() - waited_before,
                  .update = timing.steps > before.steps ? update.count() : 0});
}

double Run::backward(const Batch& batch) {
  std::vector<Batch> parts = micro_batches(batch, options_.accumulate);
  double sum = 0;
  for (const Batch& part : parts) {
    std::optional<NoSync> accumulating;
    if (&part != &parts.back()) accumulating.emplace(handle_.no_sync());
    at::Tensor loss = task_.loss(cast_batch(part, compute_dtype(options_)));
    if (compute_dtype(options_)) loss = loss.to(at::kFloat);  // float16 has no room for its scale
    double share = static_cast<double>(part.data.size(0)) / static_cast<double>(batch.data.size(0));
    sum += loss.item<double>() * share;
    scaler_.scale(share == 1 ? loss : loss * share).backward();
  }
  return sum;
}

// The rows of all ranks.
std::int64_t Run::agree(double loss, std::int64_t rows) {
  auto weight = static_cast<double>(rows);
  at::Tensor sums =
      at::tensor({loss * weight, weight, interrupt_.signal() != 0 ? 1.0 : 0.0}, at::kDouble);
  world_.all_reduce(sums, Op::sum, {.tag = "loss"}).wait();
  const double* values = sums.const_data_ptr<double>();
  loss_ = values[0] / values[1];
  if (values[2] > 0) {
    at::Tensor signal = at::tensor({interrupt_.signal()}, at::kInt);
    world_.all_reduce(signal, Op::max, {.tag = "signal"}).wait();
    signal_ = signal.item<int>();
  }
  if (!std::isfinite(loss_))
    throw CommonFailure(
        formatted("step {}: expected a finite loss, found {} (lr {})", step_, loss_, lr_), 0);
  return std::llround(values[1]);
}

bool Run::is_due(std::int64_t every) const {
  if (every > 0) return step_ % every == 0;
  return options_.epochs > 0 && step_ % steps_per_epoch_ == 0;
}

checkpoint::TrainingState Run::state() const {
  checkpoint::TrainingState state{.step = step_,
                                  .epoch = epoch(),
                                  .progress = {{"seconds", formatted("{}", pace_.seconds())},
                                               {"best", formatted("{}", stopping_.best)},
                                               {"waited", formatted("{}", stopping_.waited)},
                                               {"data_fingerprint", data_fingerprint_}},
                                  .config = configuration_.kept()};
  keep_description(state.progress, task_);
  if (scaler_.enabled()) {
    state.progress["loss_scale"] = formatted("{}", scaler_.state().scale);
    state.progress["loss_scale_steps"] = formatted("{}", scaler_.state().good_steps);
  }
  return state;
}

void Run::save() {
  auto began = Pace::Clock::now();
  checkpoint::save(options_.out, handle_, *optimizer_, state(),
                   {.keep = options_.keep, .description = description(std::nullopt, false)});
  saved_step_ = step_;
  pace_.leave_out(began);
}

}  // namespace lockstep::train
