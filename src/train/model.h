// TrainedModel: the model of a run, which parallelize() trains on the run's mesh. Base of
// strategies whose ranks update what they have by another handle.
#pragma once

#include "train/run_strategy.h"

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/parallelize.h>

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

class TrainedModel : public RunStrategy {
 public:
  // Collective: makes the mesh. Without --mesh all ranks are on one axis, fsdp if --shard divides
  // the model and dp otherwise.
  TrainedModel(const Options& options, Task& task, Group world);

  void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) override;
  double backward(const StepRows& rows, optim::GradScaler& scaler) override;
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override;
  Totals measure(const Batch& batch) override;
  std::string sample(std::int64_t length) override;
  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            checkpoint::SaveOptions options, checkpoint::AsyncSaver* saver) override;
  void load(const std::filesystem::path& folder) override;
  std::vector<std::pair<std::string, std::string>> results() override;

 protected:
  // Collective, of attach(): what trains the module. Here compose() on the whole mesh.
  [[nodiscard]] virtual Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module);
  // Forward and backward of a micro-batch, whose loss counts `share`. Returns the loss times it.
  [[nodiscard]] virtual double backward_part(const Batch& part, double share,
                                             optim::GradScaler& scaler);
  // Whether the ranks of a host may divide an update: they have the same gradients in a handle that
  // averages them.
  [[nodiscard]] virtual bool divides_updates() const { return true; }
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
  ParallelModel model_;

 private:
  [[nodiscard]] ParallelOptions parallel_options() const;
  void check_stages(const ParallelPlan& plan) const;
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& seen);
  [[nodiscard]] bool has_stages() const { return mesh_.size("pp") > 1; }
  [[nodiscard]] double backward_stages(const Batch& whole, const optim::GradScaler& scaler);
  [[nodiscard]] double backward_parts(const Batch& batch, double of_rank,
                                      optim::GradScaler& scaler);
  // This rank's part of each sequence.
  [[nodiscard]] Batch cut(Batch batch) const;

  std::shared_ptr<torch::nn::Module> module_;
  PipelineLoss loss_;  // of stages
  std::unique_ptr<torch::optim::Optimizer> own_optimizer_;
  std::shared_ptr<CommunicationHook> hook_;  // null: none
  std::optional<SyncBatchNorm> sync_;        // of --sync-batch-norm
  bool divides_update_ = false;              // among the ranks of a host
  std::int64_t sent_bytes_ = 0;              // by this rank, since the program began
};

}  // namespace lockstep::train
