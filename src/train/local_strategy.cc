#include "train/local_strategy.h"

#include "base/check.h"
#include "base/format.h"
#include "train/micro_batches.h"
#include "train/optimizer.h"

#include <lockstep/comm/together.h>
#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/parallel/join.h>

#include <ATen/record_function.h>

#include <string_view>

namespace lockstep::train {
namespace {

constexpr std::string_view of_hook = "hook.";

}  // namespace

LocalStrategy::LocalStrategy(const Options& options, Task& task, Group world)
    : options_(options), task_(task), world_(std::move(world)), hook_(hook_of_options(options)) {}

void LocalStrategy::attach(std::shared_ptr<torch::nn::Module> module, RunLength) {
  if (options_.sync_batch_norm) sync_.emplace(module, world_);
  if (options_.checkpoint_every > 0)
    checkpoint_activations(module, {task_.units().front()}, {.every = options_.checkpoint_every});
  make_handle(std::move(module));
  // Copies that differ are each rank's own to update.
  std::shared_ptr<optim::SharedUpdate> shared;
  if (!has_own_copies(options_)) shared = handle().shared_update();
  divides_update_ = shared != nullptr;
  optimizer_ = make_optimizer(options_, handle().named_parameters(), handle().state_memory(),
                              std::move(shared));
}

void LocalStrategy::make_handle(std::shared_ptr<torch::nn::Module> module) {
  handle_ = train::make_handle(options_, task_, std::move(module), world_, hook_);
}

void LocalStrategy::count_bytes(const std::function<void()>& calls) {
  const std::int64_t before = handle().group().traffic().bytes;
  calls();
  sent_bytes_ += handle().group().traffic().bytes - before;
}

double LocalStrategy::backward(const Batch& part, double share, optim::GradScaler& scaler) {
  double value = 0;
  count_bytes([&] {
    at::Tensor loss = [&] {
      RECORD_USER_SCOPE("forward");
      return task_.loss(cut(cast_batch(part, options_.sharding.compute_dtype)));
    }();
    if (options_.sharding.compute_dtype)
      loss = loss.to(at::kFloat);  // float16 has no room for its scale
    {
      RECORD_USER_SCOPE("backward");
      scaler.scale(share == 1 ? loss : loss * share).backward();
    }
    value = loss.item<double>() * share;
  });
  return value;
}

void LocalStrategy::join(const std::function<void()>& backward) {
  std::vector<Joinable*> joinables{&handle().joinable()};
  if (sync_) joinables.push_back(&sync_->joinable());
  Join others(std::move(joinables));
  backward();
  others.finish(nullptr);  // the update comes when all have come here
}

void LocalStrategy::update(double lr, const optim::GradientTransform& transform,
                           optim::GradScaler& scaler) {
  set_learning_rate(*optimizer_, lr);
  const auto step = [&] { scaler.step(*optimizer_, transform); };
  // What the ranks of a host give each other of one update goes over no network.
  if (divides_update_) {
    step();
  } else {
    count_bytes(step);
  }
  scaler.update();
  if (options_.sharding.reduce_in_step)
    handle().zero_grad();  // or an evaluation computes averages for all
}

std::map<std::string, at::Tensor> LocalStrategy::own() {
  std::map<std::string, at::Tensor> own;
  if (!hook_) return own;
  for (auto& [name, tensor] : hook_->state()) own.emplace(std::string(of_hook) + name, tensor);
  return own;
}

std::string LocalStrategy::kind() const { return hook_ ? "hook " + hook_->describe() : ""; }

void LocalStrategy::take_own(const std::map<std::string, at::Tensor>& own) {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : own)
    if (name.starts_with(of_hook)) state.emplace(name.substr(of_hook.size()), tensor);
  if (hook_) hook_->load_state(state);
}

void LocalStrategy::save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                         const checkpoint::SaveOptions& options) {
  checkpoint::save(out, handle(), *optimizer(), state, options);
}

// The folder was verified when it was chosen.
void LocalStrategy::load(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> own;
  const checkpoint::TrainingState state =
      checkpoint::load(folder, handle(), *optimizer_, {.verify = false, .own = &own});
  begin_at(state.step);
  const auto kind_before = state.progress.find(kind_entry);
  const bool is_same_kind = kind_before != state.progress.end() && kind_before->second == kind();
  if (!is_same_kind || state.ranks != processes()) return;
  together(world_, [&] {
    try {
      take_own(own);
    } catch (const BadInput& error) {
      throw BadInput(formatted("{}: {}", folder.string(), error.what()));
    }
  });
}

std::vector<std::pair<std::string, std::string>> LocalStrategy::results() {
  // fully_shard() has groups of its own, too.
  if (world_.size() == 1 || level_of(options_)) return {};
  return {{"sent_bytes", formatted("{}", sent_bytes_)}};
}

}  // namespace lockstep::train
