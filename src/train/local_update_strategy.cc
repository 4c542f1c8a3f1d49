#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/optimizer_state.h"
#include "parallel/bucket.h"
#include "parallel/state_dict.h"
#include "train/strategies.h"

#include <lockstep/module/checkpoint_activations.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/local_sgd.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::train {
namespace {

using TensorMap = std::map<std::string, at::Tensor>;

// The combination of copies: by averages, or by outer updates.
class Copies {
 public:
  virtual ~Copies() = default;
  [[nodiscard]] virtual Handle& handle() = 0;
  // Call after the optimizer's step; `is_last` means the last step of the run.
  virtual void step(bool is_last) = 0;
  // Sets the parameters to those of the combined model. Collective.
  virtual void show() = 0;
  // Save and restore state by name, in addition to parameters and optimizers. `steps` is the number
  // of steps that the run has made.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> state() = 0;
  virtual void load_state(const std::map<std::string, at::Tensor>& state) = 0;
  virtual void begin_at(std::int64_t steps) = 0;
  // Returns the bytes that this rank has sent in collectives so far.
  [[nodiscard]] virtual std::int64_t bytes_sent() { return handle().group().traffic().bytes; }
};

constexpr std::string_view of_copy = "copy.";            // parameters and buffers
constexpr std::string_view of_optimizer = "optimizer.";  // as in checkpoint::optimizer_state()
constexpr std::string_view of_strategy = "strategy.";
constexpr std::string_view of_outer = "outer.";  // DiLoCo's outer state, which the model has
constexpr std::int64_t bytes_at_once = std::int64_t{25} << 20;

TensorMap with_prefix(const TensorMap& all, std::string_view prefix) {
  TensorMap found;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix)) found.emplace(name.substr(prefix.size()), tensor);
  return found;
}

at::Tensor one_number(std::int64_t number) { return at::empty({1}, at::kLong).fill_(number); }

std::int64_t steps_in(const TensorMap& state) {
  auto steps = state.find("steps");
  check_input(steps != state.end() && steps->second.numel() == 1 &&
                  steps->second.scalar_type() == at::kLong &&
                  steps->second.item<std::int64_t>() >= 0,
              "own tensors: expected strategy.steps, an integer of at least 0");
  return steps->second.item<std::int64_t>();
}

// Averages models from the first step on: backward() sends nothing.
class Averaged final : public Copies {
 public:
  Averaged(torch::nn::Module& module, const Group& world, const Options& options)
      : local_(module, world, options.local_sgd) {}
  void step(bool) override { (void)local_.step(); }
  void show() override { local_.average_now(); }
  TensorMap state() override { return {{"steps", one_number(local_.steps())}}; }
  void load_state(const TensorMap& state) override { local_.set_steps(steps_in(state)); }
  void begin_at(std::int64_t steps) override { local_.set_steps(steps); }
  Handle& handle() override { return local_; }

 private:
  LocalSgd local_;
};

// Averages gradients in the first steps, and models afterwards.
class AveragedLater final : public Copies {
 public:
  AveragedLater(torch::nn::Module& module, const Group& world, const Options& options)
      : hook_(post_local_sgd(options.post_local_sgd)),
        ddp_(module, world,
             {.broadcast_buffers = false, .hook = hook_, .timeout = options.local_sgd.timeout}),
        averager_(ddp_.parameters(), {{options.local_sgd.period, world}},
                  options.post_local_sgd.start_step, hook_, options.local_sgd.timeout) {}
  Handle& handle() override { return ddp_; }
  void step(bool) override { (void)averager_.step(); }
  void show() override { averager_.average_now(); }
  TensorMap state() override {
    TensorMap state = hook_->state();
    state.emplace("steps", one_number(averager_.steps()));
    return state;
  }
  void load_state(const TensorMap& state) override {
    TensorMap of_hook = state;
    averager_.set_steps(steps_in(state));
    of_hook.erase("steps");
    hook_->load_state(of_hook);
  }
  void begin_at(std::int64_t steps) override {
    averager_.set_steps(steps);
    hook_->load_state({{"step", one_number(steps)}});
  }

 private:
  std::shared_ptr<CommunicationHook> hook_;
  DistributedDataParallel ddp_;
  ModelAverager averager_;
};

class OuterUpdates final : public Copies {
 public:
  OuterUpdates(torch::nn::Module& module, const Group& world, const Options& options)
      : diloco_(module, world, options.diloco) {}
  void step(bool is_last) override {
    (void)diloco_.step();
    if (is_last) (void)diloco_.synchronize();
  }
  void show() override {
    const TensorMap outer = named_outer();
    for (const Part& part : diloco_.named_parameters())
      part.tensor.detach().copy_(outer.at(part.name));
  }
  TensorMap state() override {
    TensorMap state = diloco_.state();
    std::erase_if(state, [](const auto& entry) { return entry.first.starts_with(of_outer); });
    return state;
  }
  void load_state(const TensorMap& state) override {
    TensorMap whole = state;
    for (const auto& [name, tensor] : named_outer())
      whole.emplace(std::string(of_outer) + name, tensor);
    diloco_.load_state(whole);
  }
  void begin_at(std::int64_t) override {}  // counts steps from its own start
  Handle& handle() override { return diloco_; }
  [[nodiscard]] std::int64_t bytes_sent() override { return diloco_.bytes_sent(); }

 private:
  [[nodiscard]] TensorMap named_outer() const {
    TensorMap outer;
    for (const Part& part : diloco_.state_parts())
      if (part.kind == PartKind::parameter) outer.emplace(part.name, part.tensor);
    return outer;
  }

  DiLoCo diloco_;
};

// Returns RunFacts::kind.
std::string kind_of(const Options& options) {
  const DiLoCoOptions& diloco = options.diloco;
  if (diloco.inner_steps == 0)
    return formatted("local-sgd {} from {}", options.local_sgd.period,
                     options.post_local_sgd.start_step);
  return formatted("diloco {} int8 {} fragments {} overlap {}", diloco.inner_steps,
                   diloco.pseudo_gradients == PseudoGradients::int8, diloco.fragments,
                   diloco.overlap_steps);
}

class LocalUpdateStrategy : public TrainedModel {
 public:
  LocalUpdateStrategy(const Configuration& configuration, Group world)
      : TrainedModel(configuration, std::move(world)), nothing_(optimizer_of_nothing()) {
    facts_.waits_each_step = false;
    facts_.kind = kind_of(options_);
  }

  void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) override {
    steps_ = length.steps;
    TrainedModel::attach(std::move(module), length);
  }

  // Restores this rank's copy in the module before the step.
  at::Tensor backward(const StepRows& rows, optim::GradScaler& scaler) override {
    const TensorMap own = std::exchange(set_aside_, {});
    if (!own.empty()) {
      at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : trained()) tensor.copy_(own.at(name));
    }
    return TrainedModel::backward(rows, scaler);
  }

  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override {
    TrainedModel::update(lr, transform, scaler);
    ++step_;
    RECORD_USER_SCOPE("communication");
    const std::int64_t before = copies_->bytes_sent();
    copies_->step(step_ == steps_);
    add_sent_bytes(copies_->bytes_sent() - before);
  }

  void meet(bool shows_model) override {
    if (!shows_model || !set_aside_.empty()) return;
    at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : trained()) set_aside_.emplace(name, tensor.clone());
    copies_->show();
    std::vector<at::Tensor> of_rank_0;
    for (const auto& [name, tensor] : buffers()) of_rank_0.push_back(tensor);
    parallel::broadcast_now(world_, of_rank_0, bytes_at_once, {.tag = "buffers"});
  }

 private:
  Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module) override {
    if (options_.activation_checkpoint_every > 0)
      checkpoint_activations(
          module, {task_.parallel_plan().blocks.front()},
          {.every = options_.activation_checkpoint_every, .offload = options_.activation_offload});
    if (options_.diloco.inner_steps > 0)
      copies_ = std::make_unique<OuterUpdates>(*module, world_, options_);
    else if (options_.post_local_sgd.start_step > 0)
      copies_ = std::make_unique<AveragedLater>(*module, world_, options_);
    else
      copies_ = std::make_unique<Averaged>(*module, world_, options_);
    return copies_->handle();
  }

  // Each rank stores its own copy if the copies differ.
  TensorMap own() override {
    check(!set_aside_.empty(), "train: the one model of all ranks must be shown to be saved");
    checkpoint::NamedParameters named;
    for (const Part& part : handle().named_parameters()) named.emplace_back(part.name, part.tensor);
    TensorMap own = checkpoint::optimizer_state(*optimizer_, named);
    for (const auto& [name, tensor] : set_aside_) own.emplace(std::string(of_copy) + name, tensor);
    for (const auto& [name, tensor] : copies_->state())
      own.emplace(std::string(of_strategy) + name, tensor);
    return own;
  }

  // Has no parameters: each rank's state is in own().
  torch::optim::Optimizer& saved_optimizer() override { return *nothing_; }

  void begin_at(std::int64_t step) override {
    step_ = step;
    copies_->begin_at(step);
  }

  void take_own(const TensorMap& own) override {
    const TensorMap copy = with_prefix(own, of_copy);
    const TensorMap now = trained();
    for (const auto& [name, tensor] : now) {
      auto found = copy.find(name);
      check_input(found != copy.end() && found->second.sizes() == tensor.sizes() &&
                      found->second.scalar_type() == tensor.scalar_type(),
                  "own tensors: expected {}{}, {} [{}]", of_copy, escaped(name),
                  c10::toString(tensor.scalar_type()), listed(tensor.sizes(), ", "));
    }
    checkpoint::NamedParameters named;
    for (const Part& part : handle().named_parameters()) named.emplace_back(part.name, part.tensor);
    TensorMap kept;
    for (const auto& [name, tensor] : own)
      if (name.starts_with(of_optimizer)) kept.emplace(name, tensor);
    copies_->load_state(with_prefix(own, of_strategy));
    checkpoint::load_optimizer_state(*optimizer_, named, kept);
    at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : now) tensor.copy_(copy.at(name));
  }

  [[nodiscard]] TensorMap buffers() const {
    TensorMap buffers;
    for (Part& part : parallel::whole_state_parts(*module_))
      if (part.kind == PartKind::buffer) buffers.emplace(part.name, part.tensor);
    return buffers;
  }

  // Returns the module's parameters and buffers by name.
  [[nodiscard]] TensorMap trained() {
    TensorMap tensors = buffers();
    for (Part& part : handle().named_parameters()) tensors.emplace(part.name, part.tensor.detach());
    return tensors;
  }

  std::unique_ptr<Copies> copies_;
  std::unique_ptr<torch::optim::Optimizer> nothing_;
  std::int64_t step_ = 0;
  std::int64_t steps_ = 0;  // steps of the run
  TensorMap set_aside_;     // this rank's copy while the combined model is in the module
};

}  // namespace

std::unique_ptr<TrainedModel> make_local_update_strategy(const Configuration& configuration,
                                                         const Group& world) {
  return std::make_unique<LocalUpdateStrategy>(configuration, world);
}

}  // namespace lockstep::train
