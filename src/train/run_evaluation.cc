// How a run sees how far it is: evaluations, the best model, samples.
#include "base/format.h"
#include "train/model_description.h"
#include "train/run.h"

#include <lockstep/checkpoint/checkpoint.h>

namespace lockstep::train {
namespace {

constexpr std::int64_t usual_sample = 200;  // tokens

}  // namespace

void Run::evaluate() {
  auto began = Pace::Clock::now();
  bool is_partial = evaluator_->is_partial();
  Evaluation found = evaluator_->chosen();
  (void)stopping_.update(found.loss);
  const Best before = best_;
  if (best_.update(found.loss, step_) &&
      !may_fail([&] { export_model("best", found, is_partial); }))
    best_ = before;
  if (is_partial && signal_ == 0 && finished()) {
    found = evaluator_->whole();
    is_partial = false;
  }
  evaluation_ = found;
  evaluation_is_partial_ = is_partial;
  evaluated_step_ = step_;
  pace_.leave_out(began);
}

void Run::restore_best(const checkpoint::TrainingState& state) {
  std::optional<std::int64_t> batches;
  if (evaluator_->is_partial()) batches = options_.eval_batches;
  Best own;
  if (world_.is_root()) own = read_best(folder_.best_file(), basis_of(data_fingerprint_, batches));
  if (own.step > state.step) own = {};  // of steps that are made again
  best_ = share_best(world_, own);
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
      std::filesystem::path(options_.out) / (name + ".safetensors"), strategy_.handle(),
      {.metadata = description(evaluation, is_partial), .aliases = true, .before_naming = fence()});
}

void Run::sample() {
  auto began = Pace::Clock::now();
  // On all ranks: they may have the model in parts.
  sample_ = strategy_.sample(options_.sample > 0 ? options_.sample : usual_sample);
  sampled_step_ = step_;
  pace_.leave_out(began);
}

}  // namespace lockstep::train
