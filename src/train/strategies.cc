#include "train/strategies.h"

#include "base/check.h"
#include "parallel/handle_state.h"
#include "train/device.h"

#include <lockstep/elastic/slot_gradients.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace lockstep::train {
namespace {

// DataParallel of models that have no common type.
class TaskReplicas : public DataParallelBase {
 public:
  TaskReplicas() = default;
  TaskReplicas(std::shared_ptr<torch::nn::Module> module, std::vector<ComputeDevice> devices,
               const DataParallelOptions& options)
      : DataParallelBase(std::move(module), std::move(devices), options) {}
  using DataParallelBase::run_backward;
};

// --strategy threads: the devices are threads of one rank.
class DeviceStrategy : public TrainedModel {
 public:
  using TrainedModel::TrainedModel;

 private:
  at::Tensor backward_part(const Batch& part, double share, optim::GradScaler& scaler) override {
    const double scale = scaler.enabled() ? scaler.current_scale() : 1;
    std::vector<at::Tensor> inputs{part.data, part.target};
    inputs.insert(inputs.end(), part.more.begin(), part.more.end());
    const auto loss_of = [&](int device, std::span<const at::Tensor> rows) -> DeviceLoss {
      const Autocast scope = autocast();
      at::Tensor loss = replicas_[static_cast<std::size_t>(device)].loss(
          {rows[0], rows[1], {rows.begin() + 2, rows.end()}});
      if (autocast_dtype(options_)) loss = loss.to(at::kFloat);
      return share * scale == 1 ? loss : loss * (share * scale);
    };
    const at::Tensor loss = threads_.run_backward(loss_of, inputs).detach().to(at::kDouble);
    return scale == 1 ? loss : loss / scale;
  }

  Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module) override {
    replicas_.push_back({module, [this](const Batch& batch) { return task_.loss(batch); }});
    while (std::ssize(replicas_) < options_.devices) replicas_.push_back(task_.make_replica());
    check_input(replicas_.back().module != nullptr,
                "--strategy threads: the task {} makes no replicas of its model "
                "(Task::make_replica()): train it with --ranks {}",
                task_.name(), options_.devices);
    std::size_t made = 0;
    threads_ = TaskReplicas(module, devices_of_threads(options_),
                            {.make_replica = [&] { return replicas_[++made].module; }});
    return threads_;
  }

  std::vector<Replica> replicas_;  // one per device
  TaskReplicas threads_;
};

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

void copy_into(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  at::NoGradGuard no_gradients;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

// Returns true if all slots have equally many rows. The mean over slots then equals the mean over
// rows, without a factor that would be rounded.
bool are_equal(const std::vector<Batch>& parts, std::int64_t slots) {
  return std::ssize(parts) == slots && std::ranges::all_of(parts, [&](const Batch& part) {
           return part.data.size(0) == parts.front().data.size(0);
         });
}

// The handle of a model copy that no strategy trains: SlotGradients sums the gradients of the
// copies.
class CopyState : public parallel::WholeModuleState {
 public:
  // `model` is composed of the ranks of one copy, and must outlive this object; `all` are the ranks
  // of all copies.
  CopyState(Group all, const ParallelModel& model)
      : WholeModuleState(
            std::move(all), model.named_parameters(),
            [&model] { return model.mutable_state_parts(); }, Holds::parts),
        model_(model) {
    aborts(of(model));
  }

  void zero_grad(bool set_to_none) override { of(model_).zero_grad(set_to_none); }
  [[nodiscard]] double seconds_waited() const override { return of(model_).seconds_waited(); }
  [[nodiscard]] StepTiming timing() const override { return of(model_).timing(); }

 private:
  const ParallelModel& model_;
};

// --elastic: a training whose results are bitwise equal for any number of ranks
// (lockstep/elastic/slot_gradients.h). Every rank gets the whole batch and computes its own slots,
// alone or with the ranks of its copy of the model (--mesh tp). A rank has the whole model, or the
// parts that tensor parallelism and --shard give it. The slots are divided among the learners: the
// ranks that have the same place in each copy of the model.
class ElasticStrategy : public TrainedModel {
 public:
  ElasticStrategy(const Configuration& configuration, Group world)
      : TrainedModel(configuration, std::move(world)) {
    facts_.takes_all_rows = true;
  }

  [[nodiscard]] at::Tensor backward(const StepRows& rows_of_step,
                                    optim::GradScaler& scaler) override {
    const auto& [batch, of_all, step] = rows_of_step;
    const std::int64_t slots = options_.elastic_micro_batches;
    const std::vector<Batch> parts = micro_batches(batch, slots);
    const bool is_mean = are_equal(parts, slots);
    const auto rows = static_cast<double>(batch.data.size(0));
    slots_->reset();
    begin_buffers();
    std::vector<double> losses;
    const std::int64_t passes = is_divided() ? slots_->most() : slots_->end() - slots_->begin();
    std::optional<NoSync> alone = model_.no_sync();
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const std::int64_t slot = slots_->begin() + pass;
      const bool is_own = slot < slots_->end();
      double loss = 0;
      if (is_own && slot < std::ssize(parts)) {
        const Batch& part = parts[static_cast<std::size_t>(slot)];
        const double share = is_mean ? 1 : static_cast<double>(part.data.size(0)) / rows;
        loss = backward_slot(part, share, step, slot, scaler);
      } else if (is_divided()) {
        pass_for_others(parts.front(), scaler);
      }
      if (!is_own) continue;
      slots_->take(slot);
      losses.push_back(loss);
    }
    alone.reset();
    const double divisor = is_mean ? static_cast<double>(slots) : 1;
    slots_->reduce(divisor);
    end_buffers();
    return at::scalar_tensor(tree_sum(slots_->gather(losses)) / divisor, at::kDouble);
  }

 private:
  Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module) override {
    Handle* handle = nullptr;
    if (is_divided()) {
      handle = &TrainedModel::make_handle(module);
      slots_.emplace(options_.elastic_micro_batches, model_);
    } else {
      compose(module, mesh_.sub_mesh({std::string(tensor_axis)}));
      handle = &copy_.emplace(HandleState::handle_of(std::make_shared<CopyState>(world_, model_)));
      slots_.emplace(facts_.dp_group, options_.elastic_micro_batches, handle->parameters());
    }
    for (const Part& part : handle->state_parts())
      if (part.kind == PartKind::buffer) buffers_.push_back(part.tensor);
    return *handle;
  }

  // The handles do not average gradients.
  [[nodiscard]] double backward_slot(const Batch& rows, double share, std::int64_t step,
                                     std::int64_t slot, optim::GradScaler& scaler) {
    copy_into(buffers_, before_);
    const auto of_step = static_cast<std::int64_t>(stream_seed(options_.seed, step));
    seed_generators(device(), seed_of_rank(of_step, static_cast<int>(slot)));
    const auto loss = backward_part(rows, share, scaler).item<double>();
    if (slot == 0) after_ = copies_of(buffers_);
    return loss;
  }

  // Ranks that shard the model must call it equally often. This call makes up for a missing slot.
  void pass_for_others(const Batch& rows, optim::GradScaler& scaler) {
    copy_into(buffers_, before_);
    static_cast<void>(backward_part(rows, 1, scaler));
    slots_->drop();
  }

  [[nodiscard]] bool is_divided() const { return level_of(options_).has_value(); }

  // Each slot starts with the buffers from the beginning of the step, and the next step starts with
  // the buffers after slot 0. Otherwise, batch statistics would depend on the number of slots per
  // rank.
  void begin_buffers() {
    before_ = copies_of(buffers_);
    after_.clear();
  }

  void end_buffers() {
    if (buffers_.empty()) return;
    if (facts_.dp_group.is_root()) copy_into(buffers_, after_);
    for (const at::Tensor& buffer : buffers_)
      facts_.dp_group.broadcast(buffer, 0, {.tag = "buffers"}).wait();
  }

  // Handle over all ranks: of this rank's whole model, or of the parts that this rank owns.
  std::optional<Handle> copy_;
  std::optional<SlotGradients> slots_;
  std::vector<at::Tensor> buffers_;  // this rank's part of the module's buffers
  std::vector<at::Tensor> before_;   // values at the beginning of the step
  std::vector<at::Tensor> after_;    // values after slot 0, on the rank that computes it
};

}  // namespace

std::unique_ptr<TrainedModel> make_trained_model(const Configuration& configuration,
                                                 const Group& world) {
  const Options& options = configuration.options;
  if (options.elastic) return std::make_unique<ElasticStrategy>(configuration, world);
  if (has_local_updates(options)) return make_local_update_strategy(configuration, world);
  if (options.strategy == StrategyKind::threads)
    return std::make_unique<DeviceStrategy>(configuration, world);
  return std::make_unique<TrainedModel>(configuration, world);
}

}  // namespace lockstep::train
