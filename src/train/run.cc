#include "train/run.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "base/scope_exit.h"
#include "module/checks.h"
#include "train/device.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/run_on_all_or_fail.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/sharded/deferred.h>

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <vector>

namespace lockstep::train {
namespace {

// Note for later rounds: the folder that a round has opened.
constexpr const char* folder_mark = "folder";

// An option cannot have so many epochs, but a program can set them.
std::int64_t steps_of_epochs(std::int64_t epochs, std::int64_t each) {
  constexpr std::int64_t most = 1'000'000'000'000'000;  // as --steps
  check_input(epochs == 0 || each <= most / epochs,
              "--epochs {}: expected epochs with at most {} steps together, found {} steps in each",
              epochs, most, each);
  return epochs * each;
}

std::int64_t rows_in(const Batch& batch) { return batch.data.defined() ? batch.data.size(0) : 0; }

}  // namespace

Run::Run(const Configuration& configuration, Group world, TrainedModel& model, const RunRound& in)
    : configuration_(configuration),
      task_(configuration.task()),
      world_(std::move(world)),
      in_(in),
      is_continued_(in.round != nullptr && in.round->flag(folder_mark) == options_.out),
      folder_(configuration_, in.round != nullptr && in.round->has_agent()
                                  ? std::optional(in.round->of_run())
                                  : std::nullopt),
      trace_(options_, world_, model.device().type()),
      model_(model),
      scaler_({.enabled = options_.sharding.compute_dtype == at::kHalf}) {
  if (options_.threads > 0) at::set_num_threads(options_.threads);
  if (is_continued_) interrupt_.emplace();  // there is a state in memory to save
  std::optional<checkpoint::TrainingState> state = shared_state();
  begin(state);
  if (state) restore(*state);
  modules::run_on_root_or_fail(world_, [&] {
    // Mark the folder before training starts, so that a restarted round finds it.
    folder_.open({.resumed_at = step_,
                  .repeats_row = left_out_,
                  .is_continued = is_continued_,
                  .is_taken = [&] {
                    if (has_round()) in_.round->set_flag(folder_mark, options_.out);
                  }});
  });
  if (!interrupt_) interrupt_.emplace();
  if (is_continued_)
    say_round();
  else if (state)
    say_resumed(*state);
  say_notices();
  count_lost_steps();
  goodput_.begin_round(numbers_);
  if (has_round()) in_.round->note_restored();
  pace_.start(seconds_before_);
}

void Run::begin(const std::optional<checkpoint::TrainingState>& state) {
  run_on_all_or_fail(world_, [&] {
    configuration_.check_texts();
    load_data(state);
    steps_per_epoch_ = task_.steps_per_epoch();
    steps_ =
        options_.steps > 0 ? options_.steps : steps_of_epochs(options_.epochs, steps_per_epoch_);
    configuration_.check_description();
    model_.check_memory();
    seed_generators(model_.device(), static_cast<std::uint64_t>(options_.seed));
    if (options_.deferred_init) {
      module_ = deferred([&] { return task_.make_model(); });
    } else {
      module_ = task_.make_model();
    }
    if (!model_.device().is_cpu()) move_to(*module_, model_.device());
  });
  compare_data();
  schedule_ = schedule_of(options_, {steps_, steps_per_epoch_});
  attach();
  seed_generators(model_.device(), seed_of_rank(options_.seed, model_.facts().random_stream));
  stopping_.patience = options_.patience;
  if (options_.async_save) saver_.emplace(world_);
  evaluator_.emplace(task_, module_, model_.facts().dp_group, how_to_evaluate());
}

void Run::load_data(const std::optional<checkpoint::TrainingState>& state) {
  if (state) restore_task(*state);
  try {
    // In an elastic run, each rank reads all rows of a batch, including those that others compute.
    const bool is_there = has_round() && std::exchange(*in_.has_data, true);
    if (!is_there) task_.load(options_, options_.elastic ? Group() : model_.facts().dp_group);
  } catch (const BadInput& error) {
    throw BadInput(error.what() + configuration_.place_of_data());
  }
  data_fingerprint_ = task_.data_fingerprint();
  check(is_utf8(data_fingerprint_), "Task::data_fingerprint: expected UTF-8, found '{}'",
        escaped(data_fingerprint_));
  if (state) check_same_data(*state);
}

void Run::compare_data() {
  const auto own = static_cast<std::int64_t>(fingerprint(data_fingerprint_));
  const std::vector<std::int64_t> prints = modules::numbers_of_all(world_, {own});
  auto other = std::ranges::find_if(prints, [&](auto print) { return print != prints[0]; });
  if (other == prints.end()) return;
  int rank = static_cast<int>(other - prints.begin());
  throw CollectiveFailure(
      formatted("{}: expected the same data on all ranks, rank {} has read other "
                "data than rank 0",
                configuration_.data_text(), rank),
      rank);
}

// All ranks find the same error if a model cannot be sharded, so one rank reports it.
void Run::attach() {
  try {
    model_.attach(module_, {steps_, steps_per_epoch_});
  } catch (const CollectiveFailure&) {
    throw;
  } catch (const BadInput&) {
    throw_of_all(std::current_exception());
  } catch (const InvalidArgument&) {
    throw_of_all(std::current_exception());
  }
  if (has_round()) in_.round->abort_on_end(model_.handle());
}

// After an error on this rank alone, the wait is short, because the other ranks may be in other
// collectives.
void Run::throw_of_all(const std::exception_ptr& error) {
  constexpr std::chrono::seconds longest_wait{10};
  const Duration before = world_.timeout();
  ScopeExit as_before([&] { world_.set_timeout(before); });
  world_.set_timeout(std::min<Duration>(before, longest_wait));
  try {
    run_on_all_or_fail(world_, [&] { std::rethrow_exception(error); });
  } catch (const CollectiveFailure&) {
    throw;
  } catch (const Error&) {
    // The original error of this rank says more.
  }
  std::rethrow_exception(error);
}

void Run::step() {
  trace_.begin_step();
  make_step();
  if (trace_.is_complete()) run_on_all_or_fail(world_, [&] { trace_.write(); });
}

void Run::make_step() {
  if (has_round()) *in_.begun = step_ + 1;
  lr_ = schedule_(options_.lr, step_);
  const Batch batch = take_batch();
  std::vector<std::int64_t> rows_of_all;
  if (model_.facts().waits_each_step) rows_of_all = check_rows(batch);
  const double waited_before = model_.handle().seconds_waited();
  const StepTiming before = model_.handle().timing();
  model_.handle().zero_grad();
  // Checkpoints have the state of the CPU's generator only.
  const auto of_step = static_cast<std::int64_t>(stream_seed(options_.seed, step_));
  seed_device(model_.device(), seed_of_rank(of_step, model_.facts().random_stream));
  const at::Tensor loss = model_.backward({batch, rows_of_all, step_}, scaler_);
  send_next_batch();
  const StepTiming timing = model_.handle().timing();
  const double waited_until_update = model_.handle().seconds_waited() - waited_before;
  const auto update_began = Pace::Clock::now();
  optim::GradientTransform transform;
  if (options_.clip > 0) transform.clip_norm = options_.clip;
  {
    RECORD_USER_SCOPE("update");
    model_.update(lr_, transform, scaler_);
  }
  ++step_;
  const std::chrono::duration<double> update = Pace::Clock::now() - update_began;
  const double waited = model_.handle().seconds_waited() - waited_before;
  // If all ranks have the same loss, only the root's rows count.
  const bool is_loss_of_all = model_.facts().takes_all_rows;
  const std::int64_t own_rows = is_loss_of_all && !world_.is_root() ? 0 : rows_in(batch);
  std::int64_t rows = rows_in(batch) * (is_loss_of_all ? 1 : model_.facts().dp_group.size());
  loss_ = loss.item<double>();  // this rank's loss until the ranks meet
  if (model_.facts().waits_each_step || is_meeting()) rows = agree(loss_, own_rows);
  if (is_meeting()) model_.meet(needs_model());
  // Waits of the handle are a separate part of a step, so subtract them from the parts in which
  // they occurred.
  const double in_forward = waited_until_update - (timing.exposed - before.exposed);
  const double in_update = waited - waited_until_update;
  pace_.add_step(rows, {.forward = std::max(0.0, timing.forward - before.forward - in_forward),
                        .backward = timing.backward - before.backward,
                        .exposed = waited,
                        .update = timing.steps > before.steps ? update.count() - in_update : 0});
}

Batch Run::take_batch() {
  RECORD_USER_SCOPE("data");
  std::optional<data::SentBatch<Batch>> sent = std::exchange(next_batch_, std::nullopt);
  if (!sent) sent.emplace(task_.batch(step_), copies_);
  sent->arrival.wait();
  return std::move(sent->batch);
}

void Run::send_next_batch() {
  if (model_.device().is_cpu() || step_ + 1 >= steps_) return;
  RECORD_USER_SCOPE("data");
  next_batch_.emplace(task_.batch(step_ + 1), copies_);
}

bool Run::needs_model() const {
  return evaluation_is_due() || sample_is_due() || save_is_due() || step_ >= steps_;
}

bool Run::is_meeting() const { return needs_model() || step_ % options_.log_every == 0; }

// Returns the numbers of rows of all ranks if they differ, otherwise an empty list. Without
// --uneven, different numbers are an error: ranks with fewer rows would make fewer micro-batches,
// and the others would wait for them.
std::vector<std::int64_t> Run::check_rows(const Batch& batch) {
  if (world_.size() == 1) return {};
  const std::int64_t own = batch.data.defined() && batch.data.dim() > 0 ? batch.data.size(0)
                           : options_.uneven                            ? 0
                                                                        : -1;
  std::vector<std::int64_t> all = modules::numbers_of_all(world_, {own}, {.tag = "rows"});
  auto other = std::ranges::find_if(all, [&](std::int64_t count) { return count != all[0]; });
  if (other == all.end()) return {};
  if (options_.uneven) return all;
  int rank = static_cast<int>(other - all.begin());
  throw CollectiveFailure(
      formatted("Task::batch: step {}: expected equally many rows on all ranks, "
                "found {} on rank 0 and {} on rank {}",
                step_, all[0], *other, rank),
      rank);
}

// Averages the loss over the ranks. Returns the number of rows of all ranks.
std::int64_t Run::agree(double loss, std::int64_t rows) {
  auto weight = static_cast<double>(rows);
  at::Tensor sums =
      at::tensor({loss * weight, weight, interrupt_->signal() != 0 ? 1.0 : 0.0}, at::kDouble);
  world_.all_reduce(sums, Op::sum, {.tag = "loss"}).wait();
  const double* values = sums.const_data_ptr<double>();
  const double weight_of_all = values[1];
  loss_ = values[0] / weight_of_all;
  if (values[2] > 0) (void)signal_came();
  if (!std::isfinite(loss_))
    throw CollectiveFailure(
        formatted("step {}: expected a finite loss, found {} (lr {})", step_, loss_, lr_), 0);
  if (model_.facts().takes_all_rows) return std::llround(weight_of_all);
  return std::llround(weight_of_all * model_.facts().dp_group.size() / world_.size());
}

bool Run::signal_came() {
  signal_ = static_cast<int>(
      std::ranges::max(modules::numbers_of_all(world_, {interrupt_->signal()}, {.tag = "signal"})));
  return signal_ != 0;
}

bool Run::is_due(std::int64_t every) const {
  if (every > 0) return step_ % every == 0;
  return options_.epochs > 0 && step_ % steps_per_epoch_ == 0;
}

}  // namespace lockstep::train
