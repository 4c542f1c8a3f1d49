// Run: the phases of training, which trainer.cc calls in order.
#pragma once

#include "elastic/goodput.h"
#include "elastic/round_loop.h"
#include "train/configuration.h"
#include "train/evaluator.h"
#include "train/interrupt.h"
#include "train/metrics.h"
#include "train/model.h"
#include "train/optimizer.h"
#include "train/progress.h"
#include "train/run_folder.h"

#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/train/task.h>
#include <lockstep/train/trainer.h>

#include <torch/optim/optimizer.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

// In the numbers that an elastic run commits.
inline constexpr const char* lost_steps = "elastic.lost_steps";

// In TrainingState::progress of a checkpoint whose step has no evaluation because of a signal: the
// step's loss.
inline constexpr const char* left_out_loss = "left_out_loss";

// A round of an elastic run, as Run sees it.
struct RunRound {
  Round* round = nullptr;    // null: there are no rounds
  bool* has_data = nullptr;  // whether this process has read the task's data in an earlier round
  std::int64_t* begun = nullptr;  // steps that this process has begun, in whichever round
};

// Every method is called by all ranks in the same order. What the ranks must agree on (whether to
// stop) is reduced in step().
class Run {
 public:
  // Reads data and, on a resume, the newest checkpoint; makes model, handle and optimizer; opens
  // the folder last.
  // The options were checked. `world`: the ranks that compute gradients. The configuration and the
  // model outlive the run.
  Run(const Configuration& configuration, Group world, TrainedModel& model,
      const RunRound& in = {});

  [[nodiscard]] bool finished() const {
    return step_ >= steps_ || signal_ != 0 || stopping_.should_stop();
  }

  // One update: the learning rate, this rank's rows forward and backward, clipping, the optimizer.
  // Then the ranks tell each other their losses and whether a signal came.
  void step();
  [[nodiscard]] bool evaluation_is_due() const {
    return is_due(options_.eval_every) || step_ >= steps_;
  }
  // During training of the chosen batches; of all validation data once the run is at its end. A
  // model that is better than those before goes into best.safetensors. If a signal has come or
  // comes meanwhile, the evaluation is left out, and the run that goes on makes it.
  void evaluate();
  [[nodiscard]] bool sample_is_due() const {
    return options_.sample_every > 0 && step_ % options_.sample_every == 0;
  }
  // What the model makes up now, for the next report(); nothing if a signal comes.
  void sample();
  // A row of metrics.jsonl when one is due, and the progress line. A row whose evaluation was left
  // out is written by the run that goes on.
  void report();
  // Before the first step: the evaluation that a signal kept the checkpoint's step from, and its
  // row.
  void make_up();
  [[nodiscard]] bool save_is_due() const { return is_due(options_.save_every); }
  // With --async-save the checkpoint is there when the next one is due, or at the end.
  void save();
  // Of an elastic run, when all else of the step is done: the state outlives this process.
  // RoundEnded where the ranks are to meet anew.
  void commit();

  // The last evaluation and checkpoint unless they are there, the model's file, and the last line.
  Report finish();

 private:
  // run.cc
  void make_step();
  void begin(const std::optional<checkpoint::TrainingState>& state);
  void attach();
  // Local: the data, which must be what the checkpoint was made from.
  void load_data(const std::optional<checkpoint::TrainingState>& state);
  // Collective: all ranks must have read the same.
  void compare_data();
  [[noreturn]] void throw_of_all(const std::exception_ptr& error);
  [[nodiscard]] std::vector<std::int64_t> check_rows(const Batch& batch);
  // Whether all ranks wait for each other at this step: something of it belongs to all.
  [[nodiscard]] bool is_meeting() const;
  // Whether what is done at this step needs the one model of all ranks.
  [[nodiscard]] bool needs_model() const;
  std::int64_t agree(double loss, std::int64_t rows);
  // Collective: whether some rank has received a signal, which is then in signal_.
  bool signal_came();
  [[nodiscard]] bool is_due(std::int64_t every) const;
  [[nodiscard]] std::int64_t epoch() const { return step_ / steps_per_epoch_; }

  // run_save.cc
  [[nodiscard]] checkpoint::TrainingState state() const;
  void save_now();
  [[nodiscard]] bool is_saved_already();
  void finish_saving();
  [[nodiscard]] std::function<void()> fence();
  // Collective. False, once it was said, where `action` has thrown a CommonFailure and the run goes
  // on all the same.
  [[nodiscard]] bool may_fail(const std::function<void()>& action);

  // run_resume.cc
  // Collective: what the run goes on from; nothing if it begins.
  [[nodiscard]] std::optional<checkpoint::TrainingState> shared_state();
  [[nodiscard]] std::optional<checkpoint::TrainingState> committed_state(
      const std::filesystem::path& checkpoint);
  [[nodiscard]] bool has_round() const { return in_.round != nullptr; }
  void restore_task(const checkpoint::TrainingState& state);
  void check_same_data(const checkpoint::TrainingState& state) const;
  void restore(const checkpoint::TrainingState& state);
  void count_lost_steps();
  void check_progress(const checkpoint::TrainingState& state) const;
  void restore_progress(const checkpoint::TrainingState& state);
  [[nodiscard]] std::filesystem::path checkpoint_folder(std::int64_t step) const;
  void say_notices();
  void say_round();
  void say_resumed(const checkpoint::TrainingState& state);
  [[nodiscard]] std::string command_to_go_on() const;

  // run_evaluation.cc
  [[nodiscard]] Evaluator::Options how_to_evaluate();
  void evaluate_now();
  // Task::sample(), which a signal interrupts.
  [[nodiscard]] std::string interruptible_sample(std::int64_t length);
  // What stopping early and the best model are compared with.
  void restore_best(const checkpoint::TrainingState& state);
  // What a file of the model as it is says; `evaluation` is of it, if there is one.
  [[nodiscard]] checkpoint::Metadata description(const std::optional<Evaluation>& evaluation,
                                                 bool is_partial) const;
  void export_model(const std::string& name, const std::optional<Evaluation>& evaluation,
                    bool is_partial);

  // run_report.cc
  [[nodiscard]] MetricsRow row() const;
  void finish_well();
  void say_end(const Report& report);
  [[nodiscard]] std::string last_line() const;

  const Configuration& configuration_;
  const Options& options_ = configuration_.options;
  Task& task_;
  Group world_;
  const RunRound in_;
  const bool is_continued_;  // an earlier round of this run has opened the folder
  RunFolder folder_;
  Progress progress_;
  // Signals have their usual effect until there is something to save.
  std::optional<Interrupt> interrupt_;
  Pace pace_;
  Trace trace_;
  std::string data_fingerprint_;
  std::shared_ptr<torch::nn::Module> module_;
  TrainedModel& model_;
  optim::GradScaler scaler_;
  optim::Schedule schedule_;
  EarlyStopping stopping_;
  std::optional<Evaluator> evaluator_;
  std::optional<checkpoint::AsyncSaver> saver_;  // of --async-save
  Best best_;

  std::int64_t steps_per_epoch_ = 1;
  std::int64_t steps_ = 0;             // of the whole run
  std::int64_t step_ = 0;              // updates made
  std::filesystem::path begins_from_;  // the state of restore()
  Goodput goodput_;
  std::map<std::string, double> numbers_;  // of goodput_
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  std::optional<Evaluation> evaluation_;
  bool evaluation_is_partial_ = false;
  bool left_out_ = false;  // the evaluation of this step, because of a signal
  std::string sample_;     // that was made at sampled_step_
  std::int64_t sampled_step_ = -1;
  double loss_ = 0;  // of the last step's global batch
  double lr_ = 0;
  int signal_ = 0;             // that some rank received
  double seconds_before_ = 0;  // of the runs that this one goes on from
};

// The calls of <lockstep/train/trainer.h> for a configuration that is there already. An elastic
// run's options get the numbers of slots and threads.
[[nodiscard]] Report train(Configuration& configuration, Group world);
[[nodiscard]] std::optional<Report> train_elastically(
    Configuration& configuration, const std::function<void(const Group&)>& begins);

}  // namespace lockstep::train
