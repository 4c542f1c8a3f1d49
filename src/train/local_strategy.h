// LocalStrategy: every rank updates what it has, by DistributedDataParallel or fully_shard(). Base
// of those whose handle is made otherwise.
#pragma once

#include "train/run_strategy.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/sync_batch_norm.h>

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

class LocalStrategy : public RunStrategy {
 public:
  LocalStrategy(const Options& options, Task& task, Group world);

  void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) override;
  Handle& handle() override { return handle_; }
  torch::optim::Optimizer* optimizer() override { return optimizer_.get(); }

  double backward(const Batch& part, double share, optim::GradScaler& scaler) override;
  void join(const std::function<void()>& backward) override;
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override;

  std::map<std::string, at::Tensor> own() override;
  [[nodiscard]] std::string kind() const override;
  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            const checkpoint::SaveOptions& options) override;
  void load(const std::filesystem::path& folder) override;
  int processes() const override { return world_.size(); }
  const Group& learners() const override { return world_; }
  Totals measure(const Batch& batch) override { return task_.measure(cut(batch)); }
  std::string sample(std::int64_t length) override { return task_.sample(length); }
  std::int64_t bytes_held() override { return train::bytes_held(handle(), *optimizer_); }
  std::vector<std::pair<std::string, std::string>> results() override;

 protected:
  // What this rank computes of its rows.
  [[nodiscard]] virtual Batch cut(Batch batch) const { return batch; }
  // Collective, of attach().
  virtual void make_handle(std::shared_ptr<torch::nn::Module> module);
  // Local, when the model of a checkpoint of this step has been loaded; and then, where the run is
  // of the same kind, what own() gave it.
  virtual void begin_at(std::int64_t /*step*/) {}
  virtual void take_own(const std::map<std::string, at::Tensor>& own);
  // Adds the bytes that `calls` give to collectives of all ranks to sent_bytes.
  void count_bytes(const std::function<void()>& calls);
  // Of calls of groups that the strategy has made.
  void add_sent_bytes(std::int64_t bytes) { sent_bytes_ += bytes; }

  const Options& options_;
  Task& task_;
  Group world_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Handle handle_;

 private:
  std::shared_ptr<CommunicationHook> hook_;  // null: none
  std::optional<SyncBatchNorm> sync_;        // of --sync-batch-norm
  bool divides_update_ = false;              // among the ranks of a host
  std::int64_t sent_bytes_ = 0;              // by this rank, since the program began
};

}  // namespace lockstep::train
