// TrainedModel: the model of a run, which parallelize() trains on the run's mesh, and the
// preparation of batches. Base class of the strategies in strategies.h.
#pragma once

#include "sys/topology.h"
#include "train/configuration.h"
#include "train/optimizer.h"
#include "train/option_table.h"

#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/train/task.h>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

// Autocast: LibTorch's mixed precision for the operations of a scope, as torch.autocast.

// During the lifetime of the object, operations of this thread on this type of device compute in
// `dtype` where LibTorch's lists say so, and in float32 elsewhere; parameters keep their dtype.
// Without a dtype, changes nothing.
class [[nodiscard]] Autocast {
 public:
  Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype)
      : device_(device),
        is_on_(dtype.has_value()),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    if (!is_on_) return;
    at::autocast::set_autocast_dtype(device, *dtype);
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!is_on_) return;
    // LibTorch keeps the casts of parameters until the outermost scope ends.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool is_on_;
  bool was_enabled_;
  c10::ScalarType dtype_before_;
};

// Entry of TrainingState::progress in a checkpoint: RunFacts::kind of the run that saved it.
inline constexpr const char* kind_entry = "own_kind";

struct RunFacts {
  // The ranks that have their own rows. This rank is one of them, or computes together with one.
  Group dp_group;
  int processes = 1;  // number of processes in the run: TrainingState::ranks
  // True if no rank can be a step ahead of another rank.
  bool waits_each_step = true;
  // True if each rank gets the rows of all ranks, and backward() returns the loss of all rows.
  bool takes_all_rows = false;
  // A run of the same kind, on the same number of ranks, restores the per-rank state of a
  // checkpoint; another run restores the model only. Empty: there is no per-rank state.
  std::string kind = {};
  // attach() sets the fields below. Ranks that must draw the same random numbers have the same
  // stream number; other ranks have different ones.
  int random_stream = 0;
  // True if ranks call the model equally often, because they compute it together or shard it.
  bool in_step = false;
};

// The rows of one step on this rank.
struct StepRows {
  const Batch& batch;
  // Number of rows per rank if they differ; otherwise empty.
  const std::vector<std::int64_t>& of_all;
  std::int64_t step = 0;
};

// Mixed precision (--precision): with --shard, the shards are gathered in batch_dtype(), to which
// batches are cast; without, the forward pass runs under autocast to autocast_dtype(). Each is
// std::nullopt if it does not apply.
[[nodiscard]] std::optional<c10::ScalarType> batch_dtype(const Options& options);
[[nodiscard]] std::optional<c10::ScalarType> autocast_dtype(const Options& options);

// All ranks of the run call the collective functions in the same order.
class TrainedModel {
 public:
  // Makes the mesh of the configuration's axes. Collective. The configuration must outlive the
  // model.
  TrainedModel(const Configuration& configuration, Group world);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;
  virtual ~TrainedModel() = default;

  [[nodiscard]] const RunFacts& facts() const { return facts_; }
  // Returns the device of the module, the batches and the losses.
  [[nodiscard]] c10::Device device() const { return device_; }
  // Valid after attach(). The optimizer is null if other processes update.
  [[nodiscard]] Handle& handle() { return *handle_; }
  [[nodiscard]] torch::optim::Optimizer* optimizer() { return optimizer_.get(); }
  // Returns the bytes of parameters, gradients and optimizer state on this rank.
  [[nodiscard]] std::int64_t bytes_held() const;

  // Throws BadInput if the model cannot fit into this host's memory. Local; call before the model
  // is made.
  void check_memory() const;
  // Makes the handle of the task's model, and its optimizer. Collective; call once, before the
  // functions below.
  virtual void attach(std::shared_ptr<torch::nn::Module> module, RunLength length);
  // Runs forward and backward of all micro-batches. Returns the mean loss of this rank's rows, in
  // float64. It may be on the device, which may still be computing it.
  [[nodiscard]] virtual at::Tensor backward(const StepRows& rows, optim::GradScaler& scaler);
  // Updates the parameters with the gradients.
  virtual void update(double lr, const optim::GradientTransform& transform,
                      optim::GradScaler& scaler);
  // Synchronizes the ranks after equally many steps. Collective. With `shows_model`, the module
  // then has the combined model of all ranks, for evaluation and saving, until the next backward().
  virtual void meet(bool /*shows_model*/) {}

  // Call Task::measure() and Task::sample() for a model that may be sharded.
  [[nodiscard]] Totals measure(const Batch& batch);
  [[nodiscard]] std::string sample(std::int64_t length);

  // Save and load checkpoints of all processes in the run (checkpoint::save() and load()),
  // including per-rank state. Collective; call while the module has the combined model. With a
  // saver, writing continues during training.
  virtual void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                    checkpoint::SaveOptions options, checkpoint::AsyncSaver* saver);
  virtual void load(const std::filesystem::path& folder);

  // Returns additional entries for the run's last line.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results();

 protected:
  // Makes the handle that trains the module; called by attach(). Collective. The default calls
  // compose() on the whole mesh.
  [[nodiscard]] virtual Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module);
  // Runs forward and backward of a micro-batch with its loss weighted by `share`. Returns the
  // weighted loss, in float64.
  [[nodiscard]] virtual at::Tensor backward_part(const Batch& part, double share,
                                                 optim::GradScaler& scaler);
  // Returns the state in a checkpoint that belongs to this rank only.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> own();
  // Returns the optimizer whose state is in checkpoints.
  [[nodiscard]] virtual torch::optim::Optimizer& saved_optimizer() { return *optimizer_; }
  // begin_at() is called after the model of a checkpoint of this step was loaded; take_own()
  // follows with the values of own() if the run is of the same kind. Local.
  virtual void begin_at(std::int64_t /*step*/) {}
  virtual void take_own(const std::map<std::string, at::Tensor>& own);

  // Begins the mixed precision of a forward pass in the calling thread.
  [[nodiscard]] Autocast autocast() const { return {device_.type(), autocast_dtype(options_)}; }

  // Sets model_ by parallelize(). Collective.
  void compose(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh);
  // Adds the bytes that `calls` send in collectives of all ranks to sent_bytes.
  void count_bytes(const std::function<void()>& calls);
  // Adds bytes sent in groups that the strategy has made.
  void add_sent_bytes(std::int64_t bytes) { sent_bytes_ += bytes; }

  const Options& options_;
  Task& task_;
  Group world_;
  const c10::Device device_;
  const Mesh mesh_;
  RunFacts facts_;
  std::shared_ptr<torch::nn::Module> module_;
  ParallelModel model_;
  Handle* handle_ = nullptr;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;

 private:
  [[nodiscard]] ParallelOptions parallel_options() const;
  void check_stages(const ParallelPlan& plan) const;
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& seen);
  [[nodiscard]] bool has_stages() const { return mesh_.size(stages_axis) > 1; }
  // Lets the stages of a pipeline compute under autocast().
  void cast_stages(ParallelPlan& plan) const;
  [[nodiscard]] at::Tensor backward_stages(const Batch& whole, const optim::GradScaler& scaler);
  [[nodiscard]] at::Tensor backward_parts(const Batch& batch, double of_rank,
                                          optim::GradScaler& scaler);
  // Returns this rank's part of each sequence.
  [[nodiscard]] Batch cut(Batch batch) const;

  PipelineLoss loss_;                        // used with stages
  std::shared_ptr<CommunicationHook> hook_;  // may be null
  std::optional<SyncBatchNorm> sync_;        // for --sync-batch-norm
  std::int64_t sent_bytes_ = 0;              // by this rank, since the program started
};

// Splits the batch into at most `parts` parts of equally many rows; the last part may have fewer.
[[nodiscard]] std::vector<Batch> micro_batches(const Batch& batch, std::int64_t parts);

// Casts floating-point tensors of `data` and `more` to this dtype; without a dtype, returns the
// batch unchanged.
[[nodiscard]] Batch cast_batch(Batch batch, std::optional<c10::ScalarType> dtype);

// Returns the seed of a rank's random numbers (dropout). Streams from 0 belong to steps
// (stream_seed()).
[[nodiscard]] inline std::uint64_t seed_of_rank(std::int64_t seed, int rank) {
  return stream_seed(seed, -1 - static_cast<std::int64_t>(rank));
}

// Returns the bytes of parameters, gradients and optimizer state per rank, for a model with this
// many parameters on these axes. It is a lower bound: gathered parameters, activations and buffers
// are not counted.
[[nodiscard]] double bytes_of_a_rank(const Options& options, double parameters,
                                     const MeshLayout& axes);

struct ModelSize {
  double parameters = 0;
  double activations = 0;  // lower bound of values that a rank's forward pass keeps for backward()
};

// Throws BadInput before anything is allocated if `local_ranks` ranks on this host need more than
// `memory`. Otherwise, the system grants the allocation at first, and the kernel later kills the
// process without a message. Not checked with options.offload.
void check_memory(const Options& options, const ModelSize& model, const MeshLayout& axes,
                  int local_ranks, const sys::MemorySize& memory);

}  // namespace lockstep::train
