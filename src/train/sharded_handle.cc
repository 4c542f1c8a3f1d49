// The ranks divide the model by fully_shard().
#include "train/model_handle.h"
#include "train/state_bytes.h"

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <map>
#include <utility>

namespace lockstep::train {
namespace {

using checkpoint::NamedTensors;

ShardLevel level_of(const std::string& word) {
  if (word == "optimizer") return ShardLevel::optimizer;
  return word == "gradients" ? ShardLevel::gradients : ShardLevel::full;
}

ShardOptions shard_options(const Options& options, const Task& task) {
  std::vector<std::string> patterns = task.units();
  return {.units = {patterns.begin(), patterns.end()},
          .level = level_of(options.shard),
          .storage = options.node_shared ? ShardStorage::node_shared : ShardStorage::private_memory,
          .reduce_in_step = options.reduce_in_step,
          .offload = options.offload};
}

class ShardedHandle final : public ModelHandle {
 public:
  ShardedHandle(const Options& options, const Task& task, const Group& group)
      : sharded_(fully_shard(task.module(), group, shard_options(options, task))),
        parts_(sharded_.named_parameters()) {
    for (const ShardedParameter& part : parts_) named_.emplace_back(part.name, part.tensor);
  }

  [[nodiscard]] std::vector<TrainedParameter> parameters() const override {
    std::vector<TrainedParameter> list;
    for (const auto& [name, tensor, sizes, range] : parts_) list.push_back({name, tensor, sizes});
    return list;
  }

  void zero_grad() override { sharded_.zero_grad(); }
  [[nodiscard]] std::shared_ptr<void> no_sync() override {
    return std::make_shared<ShardedNoSync>(sharded_.no_sync());
  }

  [[nodiscard]] NamedTensors model() override { return sharded_.state_dict(); }
  [[nodiscard]] NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer) override;
  void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedTensors& state) override;

  [[nodiscard]] std::shared_ptr<optim::StateMemory> state_memory() const override {
    return sharded_.state_memory();
  }
  [[nodiscard]] std::int64_t bytes(const torch::optim::Optimizer& optimizer) const override {
    std::int64_t kept = sharded_.memory().kept();
    return state_memory() ? kept : kept + bytes_of(checkpoint::optimizer_state(optimizer, named_));
  }
  [[nodiscard]] double seconds_waited() const override { return sharded_.seconds_waited(); }

 private:
  ShardedModule sharded_;
  std::vector<ShardedParameter> parts_;
  checkpoint::NamedParameters named_;
};

// A field that has one number a parameter (the count of updates) is equal on all ranks; one that
// has a number an element is gathered.
NamedTensors ShardedHandle::optimizer_state(const torch::optim::Optimizer& optimizer) {
  NamedTensors own = checkpoint::optimizer_state(optimizer, named_), whole;
  std::map<std::string, std::vector<at::Tensor>> fields;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::string prefix = checkpoint::optimizer_key(parts_[i].name);
    for (auto item = own.lower_bound(prefix); item != own.end() && item->first.starts_with(prefix);
         ++item) {
      std::string field = item->first.substr(prefix.size());
      if (field.find('.') != std::string::npos) continue;  // of another parameter
      if (item->second.dim() == 0) {
        whole[item->first] = item->second;
      } else {
        fields.try_emplace(field, parts_.size()).first->second[i] = item->second;
      }
    }
  }
  for (const auto& [field, values] : fields) {
    std::vector<at::Tensor> gathered = sharded_.gather_parts(values);
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (gathered[i].defined())
        whole[checkpoint::optimizer_key(parts_[i].name, field)] = gathered[i];
    if (auto memory = state_memory())
      for (const at::Tensor& value : values) memory->has_used(value);
  }
  return whole;
}

void ShardedHandle::load_optimizer_state(torch::optim::Optimizer& optimizer,
                                         const NamedTensors& state) {
  NamedTensors own = state;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::string prefix = checkpoint::optimizer_key(parts_[i].name);
    for (auto item = own.lower_bound(prefix); item != own.end() && item->first.starts_with(prefix);
         ++item) {
      bool of_another = item->first.find('.', prefix.size()) != std::string::npos;
      if (!of_another && item->second.dim() > 0) item->second = sharded_.part_of(i, item->second);
    }
  }
  checkpoint::load_optimizer_state(optimizer, named_, own);
}

}  // namespace

std::unique_ptr<ModelHandle> make_sharded_handle(const Options& options, const Task& task,
                                                 const Group& group) {
  return std::make_unique<ShardedHandle>(options, task, group);
}

}  // namespace lockstep::train
