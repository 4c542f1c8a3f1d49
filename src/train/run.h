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
#include <lockstep/data/batches.h>
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

// Entry in the numbers that an elastic run commits.
inline constexpr const char* lost_steps = "elastic.lost_steps";

// Entry of TrainingState::progress: the step's loss, in a checkpoint whose evaluation was skipped
// because of a signal.
inline constexpr const char* left_out_loss = "left_out_loss";

// The round of an elastic run, as seen by Run.
struct RunRound {
  Round* round = nullptr;         // null: no rounds
  bool* has_data = nullptr;       // this process has read the task's data in an earlier round
  std::int64_t* begun = nullptr;  // steps that this process has begun, in all rounds
};

// All ranks call every method in the same order. step() reduces the values on which ranks must
// agree (such as stopping).
class Run {
 public:
  // Reads data and, on a resume, the newest checkpoint; makes model, handle and optimizer; opens
  // the folder last. The options must have been checked. `world` are the ranks that compute
  // gradients. The configuration and the model must outlive the run.
  Run(const Configuration& configuration, Group world, TrainedModel& model,
      const RunRound& in = {});

  [[nodiscard]] bool finished() const {
    return step_ >= steps_ || signal_ != 0 || stopping_.should_stop();
  }

  // Makes one update: learning rate, forward and backward of this rank's rows, clipping, optimizer.
  // Then reduces the losses and whether a signal came.
  void step();
  [[nodiscard]] bool evaluation_is_due() const {
    return is_due(options_.eval_every) || step_ >= steps_;
  }
  // Evaluates the chosen batches during training, or all validation data at the end of the run.
  // Saves a new best model to best.safetensors. If a signal has come or comes during the
  // evaluation, the evaluation is skipped, and the resumed run makes it.
  void evaluate();
  [[nodiscard]] bool sample_is_due() const {
    return options_.sample_every > 0 && step_ % options_.sample_every == 0;
  }
  // Generates a sample for the next report(); no sample if a signal comes.
  void sample();
  // Writes a row of metrics.jsonl if one is due, and the progress line. If the evaluation of a row
  // was skipped, the resumed run writes the row.
  void report();
  // Makes the evaluation that a signal has skipped at the checkpoint's step, and writes its row.
  // Call before the first step.
  void make_up();
  [[nodiscard]] bool save_is_due() const { return is_due(options_.save_every); }
  // Saves a checkpoint. With --async-save, it is complete when the next one is due, or at the end.
  void save();
  // Commits the state of an elastic run, so that it survives this process. Call at the end of the
  // step. Throws RoundEnded if the ranks are to meet in a new round.
  void commit();

  // Makes the last evaluation and checkpoint if they are missing, writes the model's file, and
  // prints the last line.
  Report finish();

 private:
  // Defined in run.cc:
  void make_step();
  // Returns this step's batch, in the device's memory.
  [[nodiscard]] Batch take_batch();
  // Reads the next step's batch and begins to copy it to the device. Does nothing if the device is
  // the CPU: reading ahead would take cores from the computation.
  void send_next_batch();
  void begin(const std::optional<checkpoint::TrainingState>& state);
  void attach();
  // Loads the data, which must be the same as for the checkpoint. Local.
  void load_data(const std::optional<checkpoint::TrainingState>& state);
  // Throws if ranks have read different data. Collective.
  void compare_data();
  [[noreturn]] void throw_of_all(const std::exception_ptr& error);
  [[nodiscard]] std::vector<std::int64_t> check_rows(const Batch& batch);
  // Returns true if all ranks wait for each other at this step, because some work of the step is
  // collective.
  [[nodiscard]] bool is_meeting() const;
  // Returns true if this step needs the combined model of all ranks.
  [[nodiscard]] bool needs_model() const;
  std::int64_t agree(double loss, std::int64_t rows);
  // Returns true if some rank has received a signal, which is then in signal_. Collective.
  bool signal_came();
  [[nodiscard]] bool is_due(std::int64_t every) const;
  [[nodiscard]] std::int64_t epoch() const { return step_ / steps_per_epoch_; }

  // Defined in run_save.cc:
  [[nodiscard]] checkpoint::TrainingState state() const;
  void save_now();
  [[nodiscard]] bool is_saved_already();
  void finish_saving();
  [[nodiscard]] std::function<void()> fence();
  // Returns false if `action` has thrown a CollectiveFailure, which was printed, and the run goes
  // on nevertheless. Collective.
  [[nodiscard]] bool may_fail(const std::function<void()>& action);

  // Returns the state from which the run continues, or std::nullopt if the run begins. Collective.
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

  // Defined in run_report.cc:
  [[nodiscard]] Evaluator::Options how_to_evaluate();
  void evaluate_now();
  // Calls Task::sample(), which a signal interrupts.
  [[nodiscard]] std::string interruptible_sample(std::int64_t length);
  // Restores the values with which EarlyStopping and Best compare.
  void restore_best(const checkpoint::TrainingState& state);
  // Returns the metadata for a file of the current model. `evaluation` is the evaluation of this
  // model, if there is one.
  [[nodiscard]] checkpoint::Metadata description(const std::optional<Evaluation>& evaluation,
                                                 bool is_partial) const;
  void export_model(const std::string& name, const std::optional<Evaluation>& evaluation,
                    bool is_partial);

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
  // Signals keep their usual effect until there is a state to save.
  std::optional<Interrupt> interrupt_;
  Pace pace_;
  Trace trace_;
  std::string data_fingerprint_;
  std::shared_ptr<torch::nn::Module> module_;
  TrainedModel& model_;
  data::DeviceCopies copies_{model_.device()};
  std::optional<data::SentBatch<Batch>> next_batch_;  // of the next step, if it was sent
  optim::GradScaler scaler_;
  optim::Schedule schedule_;
  EarlyStopping stopping_;
  std::optional<Evaluator> evaluator_;
  std::optional<checkpoint::AsyncSaver> saver_;  // for --async-save
  Best best_;

  std::int64_t steps_per_epoch_ = 1;
  std::int64_t steps_ = 0;             // of the whole run
  std::int64_t step_ = 0;              // updates made
  std::filesystem::path begins_from_;  // folder of the state for restore()
  Goodput goodput_;
  std::map<std::string, double> numbers_;  // for goodput_
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  std::optional<Evaluation> evaluation_;
  bool evaluation_is_partial_ = false;
  bool left_out_ = false;  // a signal skipped the evaluation of this step
  std::string sample_;     // made at sampled_step_
  std::int64_t sampled_step_ = -1;
  double loss_ = 0;  // over the last step's global batch
  double lr_ = 0;
  int signal_ = 0;             // received by some rank
  double seconds_before_ = 0;  // time of the runs that this run continues
};

// The functions of <lockstep/train/trainer.h> for an existing configuration. In an elastic run,
// sets the numbers of slots and threads in the options.
[[nodiscard]] Report train(Configuration& configuration, Group world);
[[nodiscard]] std::optional<Report> train_elastically(
    Configuration& configuration, const std::function<void(const Group&)>& begins);

}  // namespace lockstep::train
