#include "train/local_strategy.h"

#include "train/micro_batches.h"
#include "train/optimizers.h"

#include <lockstep/module/checkpoint_activations.h>

namespace lockstep::train {

void LocalStrategy::attach(std::shared_ptr<torch::nn::Module> module, const ScheduleOptions&,
                           std::int64_t) {
  if (options_.checkpoint_every > 0)
    checkpoint_activations(*module, task_.units().front(),
                           {.every = static_cast<int>(options_.checkpoint_every)});
  make_handle(std::move(module));
  optimizer_ = make_optimizer(options_, handle().named_parameters(), handle().state_memory());
}

double LocalStrategy::backward(const Batch& part, double share, optim::GradScaler& scaler) {
  at::Tensor loss = task_.loss(cast_batch(part, compute_dtype(options_)));
  if (compute_dtype(options_)) loss = loss.to(at::kFloat);  // float16 has no room for its scale
  scaler.scale(share == 1 ? loss : loss * share).backward();
  return loss.item<double>() * share;
}

void LocalStrategy::update(double lr, const optim::GradientTransform& transform,
                           optim::GradScaler& scaler) {
  set_learning_rate(*optimizer_, lr);
  scaler.step(*optimizer_, transform);
  scaler.update();
  if (options_.reduce_in_step) handle().zero_grad();  // or an evaluation computes averages for all
}

void LocalStrategy::save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                         const checkpoint::SaveOptions& options) {
  checkpoint::save(out, handle(), *optimizer_, state, options);
}

// The folder was verified when it was chosen.
void LocalStrategy::load(const std::filesystem::path& folder) {
  (void)checkpoint::load(folder, handle(), *optimizer_, {.verify = false});
}

std::int64_t LocalStrategy::bytes_held() { return train::bytes_held(handle(), *optimizer_); }

void LocalStrategy::make_handle(std::shared_ptr<torch::nn::Module> module) {
  handle_ = train::make_handle(options_, task_, std::move(module), world_);
}

}  // namespace lockstep::train
