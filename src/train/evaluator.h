// Evaluation of a model: Evaluator measures it on its task's validation samples; EarlyStopping and
// Best compare its loss with earlier losses.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>
#include <lockstep/train/task.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::train {

// Evaluates on all validation samples, or on a fixed subset.
class Evaluator {
 public:
  // Called on rank 0 with the progress of an evaluation, between 0 and 1 (exclusive).
  using Tell = std::function<void(double)>;

  struct Options {
    std::int64_t batches = 0;  // number of batches of Task::evaluation_rows() samples each; 0: all
    bool in_step = false;      // ranks compute or shard the model together: RunFacts::in_step
    // If positive, the samples are measured in at least this many parts, and the sums of the parts
    // are added in a fixed order: the result is bitwise equal for any number of ranks.
    std::int64_t parts = 0;
    std::optional<c10::ScalarType> compute_dtype = std::nullopt;  // for cast_batch()
    c10::Device device = c10::Device(c10::kCPU);                  // of the module
    Tell tell = {};
    std::function<Totals(const Batch&)> measure = {};  // empty: Task::measure()
    // Called before each batch; true ends the evaluation. With `in_step`, all ranks call it
    // together and get the same answer; otherwise each rank calls it on its own. Empty: never stop.
    std::function<bool()> stops = {};
  };

  // `module` belongs to the task, which must outlive this object.
  Evaluator(Task& task, std::shared_ptr<torch::nn::Module> module, Group world, Options options);

  // Returns true if chosen() measures only a subset of the samples.
  [[nodiscard]] bool is_partial() const { return chosen_ < samples_; }

  // Evaluate the chosen samples, or all. Collective. The module is in evaluation mode during the
  // call; afterwards each submodule has its previous mode. The chosen samples are evenly spaced, so
  // they depend neither on the number of ranks nor on the step. If one rank stops, throws
  // Interrupted on all ranks.
  [[nodiscard]] Evaluation chosen() { return over(chosen_); }
  [[nodiscard]] Evaluation whole() { return over(samples_); }

 private:
  [[nodiscard]] Evaluation over(std::int64_t count);

  Task& task_;
  std::shared_ptr<torch::nn::Module> module_;
  Group world_;
  Options options_;
  std::int64_t samples_;
  std::int64_t chosen_;
};

// Stops a run if the validation loss has not improved for some evaluations.
struct EarlyStopping {
  std::int64_t patience = 0;  // evaluations in a row without a new best; 0: never stop
  double best = std::numeric_limits<double>::infinity();
  std::int64_t waited = 0;  // evaluations since the best

  // Adds one validation loss; returns true if it is a new best. NaN never is.
  bool update(double val_loss) {
    bool better = val_loss < best;
    waited = better ? 0 : waited + 1;
    if (better) best = val_loss;
    return better;
  }

  [[nodiscard]] bool should_stop() const { return patience > 0 && waited >= patience; }
};

// The best model of a run so far. It is in best.safetensors, whose metadata has its loss and step,
// so that these always match the model.
struct Best {
  double val_loss = std::numeric_limits<double>::infinity();
  std::int64_t step = -1;  // -1: no model yet

  // Adds one evaluation; returns true if it is a new best. NaN never is.
  bool update(double found_loss, std::int64_t found_step) {
    if (!(found_loss < val_loss)) return false;
    val_loss = found_loss;
    step = found_step;
    return true;
  }
};

// Returns the metadata entries that must be equal for two losses to be comparable: losses on other
// data, or on another part of it, are not.
[[nodiscard]] checkpoint::Metadata basis_of(const std::string& data_fingerprint,
                                            std::optional<std::int64_t> eval_batches);

// Reads the best model's metadata on rank 0. Collective. If the file is missing, unreadable, has
// another basis, or is from a step after `last_step`, returns no best, so that the next evaluation
// writes the file.
[[nodiscard]] Best read_best(Group& group, const std::filesystem::path& file,
                             const checkpoint::Metadata& basis, std::int64_t last_step);

// Evaluates a saved model on its validation data or on other data.
struct EvaluateOptions {
  std::string run;  // path for read_model()
  // File to evaluate as a whole; empty: the validation part of the run's own data.
  std::string data;
  std::string bpe;           // folder of the byte-pair encoding; empty: the one of the run
  std::int64_t batches = 0;  // number of batches, spread evenly over the data; 0: all
  c10::Device device = c10::Device(c10::kCPU);  // computes
};

struct SavedEvaluation {
  double val_loss = 0;             // nats per token for text tasks, otherwise the loss of the task
  std::optional<double> accuracy;  // mnist
  std::string line;                // "val_loss=1.8743 bits_per_character=2.7041 ... step=2000 ..."
};

// Evaluates a saved model. Collective: every rank reads the whole model and measures its share of
// the data. The result is equal on every rank, and equal for any number of ranks up to rounding of
// sums. On rank 0, calls `tell` with the progress, between 0 and 1 (exclusive).
//
// If any rank finds an error in the model or the data, all ranks throw CollectiveFailure.
[[nodiscard]] SavedEvaluation evaluate_saved(const EvaluateOptions& options, Group world,
                                             const std::function<void(double)>& tell = {});

}  // namespace lockstep::train
