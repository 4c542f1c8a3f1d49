// How a run sees how far it is: evaluations, the best model, samples.
#include "train/model_description.h"
#include "train/run.h"

#include <lockstep/base/format.h>
#include <lockstep/train/agreement.h>

namespace lockstep::train {
namespace {

using EvaluationClock = std::chrono::steady_clock;
constexpr std::int64_t usual_sample = 200;  // tokens

}  // namespace

void Run::evaluate() {
  auto began = EvaluationClock::now();
  bool is_partial = evaluator_->is_partial();
  Evaluation found = evaluator_->chosen();
  (void)stopping_.update(found.loss);
  if (best_.update(found.loss, step_)) export_model("best", found, is_partial);
  if (is_partial && signal_ == 0 && finished()) {
    found = evaluator_->whole();
    is_partial = false;
  }
  evaluation_ = found;
  evaluation_is_partial_ = is_partial;
  evaluated_step_ = step_;
  reported_at_ += EvaluationClock::now() - began;  // the rate is that of training
}

// Collective.
void Run::export_model(const std::string& name, const std::optional<Evaluation>& evaluation,
                       bool is_partial) {
  checkpoint::NamedTensors tensors = handle_->model();
  together(world_, [&] {
    if (!world_.is_root()) return;
    checkpoint::Metadata description = model_description(options_, task_->data_identity(), step_);
    if (evaluation) description["val_loss"] = formatted("{}", evaluation->loss);
    if (is_partial) description["eval_batches"] = formatted("{}", options_.eval_batches);
    folder_.export_model(name, tensors, description);
  });
}

void Run::sample() {
  auto began = EvaluationClock::now();
  // On all ranks: they may have the model in parts.
  sample_ = task_->sample(options_.sample > 0 ? options_.sample : usual_sample);
  sampled_step_ = step_;
  reported_at_ += EvaluationClock::now() - began;
}

}  // namespace lockstep::train
