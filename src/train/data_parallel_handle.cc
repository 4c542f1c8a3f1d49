// Every rank has the whole model.
#include "train/model_handle.h"
#include "train/state_bytes.h"

#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>

namespace lockstep::train {
namespace {

class DataParallelHandle final : public ModelHandle {
 public:
  DataParallelHandle(const Task& task, const Group& group) : ddp_(task.module(), group) {
    for (const NamedParameter& parameter : ddp_.named_parameters())
      named_.emplace_back(parameter.name, parameter.tensor);
  }

  [[nodiscard]] std::vector<TrainedParameter> parameters() const override {
    std::vector<TrainedParameter> list;
    for (const auto& [name, tensor] : named_) list.push_back({name, tensor, tensor.sizes().vec()});
    return list;
  }

  void zero_grad() override { ddp_.zero_grad(); }
  [[nodiscard]] std::shared_ptr<void> no_sync() override {
    return std::make_shared<NoSync>(ddp_.no_sync());
  }

  [[nodiscard]] checkpoint::NamedTensors model() override { return ddp_.state_dict(); }
  [[nodiscard]] checkpoint::NamedTensors optimizer_state(
      const torch::optim::Optimizer& optimizer) override {
    return checkpoint::optimizer_state(optimizer, named_);
  }
  void load_optimizer_state(torch::optim::Optimizer& optimizer,
                            const checkpoint::NamedTensors& state) override {
    checkpoint::load_optimizer_state(optimizer, named_, state);
  }

  [[nodiscard]] std::int64_t bytes(const torch::optim::Optimizer& optimizer) const override {
    return bytes_with_gradients(named_) + bytes_of(checkpoint::optimizer_state(optimizer, named_));
  }
  [[nodiscard]] double seconds_waited() const override { return ddp_.seconds_waited(); }

 private:
  DistributedDataParallel ddp_;
  checkpoint::NamedParameters named_;
};

}  // namespace

std::unique_ptr<ModelHandle> make_data_parallel_handle(const Task& task, const Group& group) {
  return std::make_unique<DataParallelHandle>(task, group);
}

}  // namespace lockstep::train
