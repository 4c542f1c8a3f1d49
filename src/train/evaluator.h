// How good a model is: Evaluator measures it on its task's validation samples, EarlyStopping and
// Best compare its losses with those before.
#pragma once

#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/comm/group.h>
#include <lockstep/train/evaluation.h>
#include <lockstep/train/task.h>

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

// On all validation samples, or on some that are the same every time.
class Evaluator {
 public:
  // Told on rank 0 how far an evaluation is, above 0 and below 1.
  using Tell = std::function<void(double)>;

  struct Options {
    std::int64_t batches = 0;  // of Task::evaluation_rows() samples each; 0: all there are
    bool in_step = false;      // ranks compute or keep the model together: RunFacts::in_step
    // More than 0: the samples are measured in at least so many parts, and the sums of all of them
    // are added in one order: the result has the same bits at any number of ranks.
    std::int64_t parts = 0;
    std::optional<c10::ScalarType> compute_dtype = std::nullopt;  // as cast_batch()
    Tell tell = {};
    std::function<Totals(const Batch&)> measure = {};  // empty: Task::measure()
    // Asked before each batch; true ends the evaluation. With `in_step` all ranks ask together and
    // get the same answer, else each for itself. Empty: never.
    std::function<bool()> stops = {};
  };

  // `module` is that of the task, which outlives this.
  Evaluator(Task& task, std::shared_ptr<torch::nn::Module> module, Group world, Options options);

  // Whether fewer are chosen than there are.
  [[nodiscard]] bool is_partial() const { return chosen_ < samples_; }

  // Collective; the module goes into evaluation mode meanwhile, and each
  // of the modules in it then back to its own. The chosen samples lie at equal
  // distances, so that neither the number of ranks nor the step changes which they are. Throws
  // Interrupted on all ranks if one of them stops.
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

// Stops a run when the validation loss has not become better for some evaluations.
struct EarlyStopping {
  std::int64_t patience = 0;  // evaluations in a row without a new best; 0: never stop
  double best = std::numeric_limits<double>::infinity();
  std::int64_t waited = 0;  // evaluations since the best

  // Takes one validation loss; true when it is a new best. Not-a-number never is.
  bool update(double val_loss) {
    bool better = val_loss < best;
    waited = better ? 0 : waited + 1;
    if (better) best = val_loss;
    return better;
  }

  [[nodiscard]] bool should_stop() const { return patience > 0 && waited >= patience; }
};

// The best model of a run so far. It lies in best.safetensors, whose metadata say how good it is
// and of which step: what cannot tear from the model itself.
struct Best {
  double val_loss = std::numeric_limits<double>::infinity();
  std::int64_t step = -1;  // -1: there is none yet

  // Takes one evaluation; true when it is a new best. NaN never is.
  bool update(double found_loss, std::int64_t found_step) {
    if (!(found_loss < val_loss)) return false;
    val_loss = found_loss;
    step = found_step;
    return true;
  }
};

// Losses on other data, or on another part of it, cannot be compared: the entries of the metadata
// that must be equal for it.
[[nodiscard]] checkpoint::Metadata basis_of(const std::string& data_fingerprint,
                                            std::optional<std::int64_t> eval_batches);

// Collective: what the file says that rank 0 reads. A file that is missing, cannot be read, has
// another basis, or is of a step after `last_step` holds no best: the next evaluation writes it.
[[nodiscard]] Best read_best(Group& group, const std::filesystem::path& file,
                             const checkpoint::Metadata& basis, std::int64_t last_step);

}  // namespace lockstep::train
