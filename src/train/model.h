// TrainedModel: the model of a run, which parallelize() trains on the run's mesh; and what is done
// to a batch before the model sees it. Base of the ways to train that strategies.h lists.
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

// In TrainingState::progress of a checkpoint: RunFacts::kind of the run that saved it.
inline constexpr const char* kind_entry = "own_kind";

struct RunFacts {
  // The ranks that have rows of their own, of which this is one, or computes with one.
  Group learners;
  int processes = 1;  // that take part: TrainingState::ranks
  // Whether no rank can be a step ahead of another one in any case.
  bool waits_each_step = true;
  // Whether each rank is given the rows of all ranks, and backward() returns the loss of all rows.
  bool takes_all_rows = false;
  // A run of the same kind, on as many ranks, takes up what a checkpoint keeps of each rank;
  // another one begins with the model alone. Empty: ranks keep nothing.
  std::string kind = {};
  // Since attach():
  // Ranks that draw the same random numbers have the same stream, all others another one.
  int random_stream = 0;
  // Whether ranks pass through the model equally often, because they compute or keep it together.
  bool in_step = false;
};

// A step's rows on this rank.
struct StepRows {
  const Batch& batch;
  const std::vector<std::int64_t>& of_all;  // numbers of all ranks where they differ, else empty
  std::int64_t step = 0;
};

// Collective functions are called by all ranks of the run in the same order.
class TrainedModel {
 public:
  // Collective: makes the mesh of the configuration's axes. The configuration outlives the model.
  TrainedModel(const Configuration& configuration, Group world);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;
  virtual ~TrainedModel() = default;

  [[nodiscard]] const RunFacts& facts() const { return facts_; }
  // Since attach(). The optimizer is null where other processes update.
  [[nodiscard]] Handle& handle() { return *handle_; }
  [[nodiscard]] torch::optim::Optimizer* optimizer() { return optimizer_.get(); }
  // Of parameters, gradients and optimizer state on this rank.
  [[nodiscard]] std::int64_t bytes_held() const;

  // Local, before the model is made: BadInput if it cannot fit into this machine's memory.
  void check_memory() const;
  // Collective, once, before all others: the handle on the task's model, and its optimizer.
  virtual void attach(std::shared_ptr<torch::nn::Module> module, RunLength length);
  // Forward and backward of all micro-batches. Returns the mean loss of this rank's rows.
  [[nodiscard]] virtual double backward(const StepRows& rows, optim::GradScaler& scaler);
  // The update that the gradients make.
  virtual void update(double lr, const optim::GradientTransform& transform,
                      optim::GradScaler& scaler);
  // Collective, when all ranks have made equally many steps. With `shows_model` the module has the
  // one model of all ranks then, to be measured and saved, until backward().
  virtual void meet(bool /*shows_model*/) {}

  // Task::measure() and Task::sample() of the model as ranks have it.
  [[nodiscard]] Totals measure(const Batch& batch);
  [[nodiscard]] std::string sample(std::int64_t length);

  // Collective, when the module has the one model: checkpoint::save() and load() of all processes
  // that take part, with what each rank keeps of its own. With a saver the writing goes on beside
  // the training.
  virtual void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                    checkpoint::SaveOptions options, checkpoint::AsyncSaver* saver);
  virtual void load(const std::filesystem::path& folder);

  // More of the run's last line.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results();

 protected:
  // Collective, of attach(): what trains the module. Here compose() on the whole mesh.
  [[nodiscard]] virtual Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module);
  // Forward and backward of a micro-batch, whose loss counts `share`. Returns the loss times it.
  [[nodiscard]] virtual double backward_part(const Batch& part, double share,
                                             optim::GradScaler& scaler);
  // What a checkpoint keeps of this rank alone.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> own();
  // The optimizer whose state a checkpoint has.
  [[nodiscard]] virtual torch::optim::Optimizer& saved_optimizer() { return *optimizer_; }
  // Local, when the model of a checkpoint of this step has been loaded; and then, where the run is
  // of the same kind, what own() gave it.
  virtual void begin_at(std::int64_t /*step*/) {}
  virtual void take_own(const std::map<std::string, at::Tensor>& own);

  // Collective: model_, by parallelize().
  void compose(const std::shared_ptr<torch::nn::Module>& module, const Mesh& mesh);
  // Adds the bytes that `calls` give to collectives of all ranks to sent_bytes.
  void count_bytes(const std::function<void()>& calls);
  // Of calls of groups that the strategy has made.
  void add_sent_bytes(std::int64_t bytes) { sent_bytes_ += bytes; }

  const Options& options_;
  Task& task_;
  Group world_;
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
  [[nodiscard]] double backward_stages(const Batch& whole, const optim::GradScaler& scaler);
  [[nodiscard]] double backward_parts(const Batch& batch, double of_rank,
                                      optim::GradScaler& scaler);
  // This rank's part of each sequence.
  [[nodiscard]] Batch cut(Batch batch) const;

  PipelineLoss loss_;                        // of stages
  std::shared_ptr<CommunicationHook> hook_;  // null: none
  std::optional<SyncBatchNorm> sync_;        // of --sync-batch-norm
  std::int64_t sent_bytes_ = 0;              // by this rank, since the program began
};

// The batch in at most `parts` parts of equally many rows, the last of fewer where they do not
// divide.
[[nodiscard]] std::vector<Batch> micro_batches(const Batch& batch, std::int64_t parts);

// Floating-point numbers of `data` and `more` in this dtype; none: as they are.
[[nodiscard]] Batch cast_batch(Batch batch, std::optional<c10::ScalarType> dtype);

// The seed of a rank's random numbers (dropout). Streams from 0 belong to steps (stream_seed()).
[[nodiscard]] inline std::uint64_t seed_of_rank(std::int64_t seed, int rank) {
  return stream_seed(seed, -1 - static_cast<std::int64_t>(rank));
}

// Parameters, gradients and optimizer state of a model of so many parameters, in bytes of one rank
// on these axes: at least, because what is gathered, activations and buffers come on top.
[[nodiscard]] double bytes_of_a_rank(const Options& options, double parameters,
                                     const MeshLayout& axes);

struct ModelSize {
  double parameters = 0;
  double activations = 0;  // numbers that a rank's forward pass keeps for backward(), at least
};

// Throws BadInput when `local_ranks` on this machine cannot have that in `memory`, before any of it
// is made: an allocation that the system grants at first ends in a process that the kernel kills
// without a word. Not with options.offload.
void check_memory(const Options& options, const ModelSize& model, const MeshLayout& axes,
                  int local_ranks, const sys::MemorySize& memory);

}  // namespace lockstep::train
