// Small models on devices, with their batches and handles.
#pragma once

#include <lockstep/models/mlp.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "parallel/composition.h"
#include "parallel/support.h"

#include <ATen/ops/mse_loss.h>
#include <torch/optim/sgd.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

constexpr int ranks = 2;

// std::nullopt: DistributedDataParallel.
using Level = std::optional<ShardLevel>;
inline const std::vector<Level> all_levels = {std::nullopt, ShardLevel::optimizer,
                                              ShardLevel::gradients, ShardLevel::full};

inline std::string name_of_level(const testing::TestParamInfo<Level>& info) {
  if (!info.param) return "ddp";
  if (*info.param == ShardLevel::full) return "full";
  return *info.param == ShardLevel::gradients ? "gradients" : "optimizer";
}

using Values = std::map<std::string, at::Tensor>;

inline models::Mlp model_on(c10::Device device, at::ScalarType dtype = at::kFloat) {
  models::Mlp model(models::MlpOptions{{16, 32, 16, 16}});
  fill_parameters(*model, 1);
  model->to(dtype);
  model->to(device);
  return model;
}

// Returns the loss of a batch; the batch is the same in every process.
inline at::Tensor loss_of(models::Mlp& model, int batch, at::ScalarType dtype = at::kFloat) {
  const auto device = model->parameters().front().device();
  const auto inputs = values({4, 16}, 100 + batch).to(dtype).to(device);
  const auto targets = values({4, 16}, 200 + batch).to(dtype).to(device);
  return at::mse_loss(model->forward(inputs), targets);
}

inline Handle handle_of(const Level& level, models::Mlp& model, const Group& group,
                        ShardOptions options = {}) {
  if (!level) return DistributedDataParallel(model, group);
  options.units = {"layers.*"};
  options.level = *level;
  return fully_shard(model, group, options);
}

// The smallest Gpt that two ranks on each axis can divide.
inline models::GptOptions least_gpt() {
  models::GptOptions options = small_gpt(2);
  options.heads = 2;
  options.hidden_size = 8;
  return options;
}

// Returns the state_dict on the CPU. Collective if the parameters are divided.
inline Values on_cpu(const Handle& handle) {
  Values all;
  for (const auto& [name, tensor] : handle.state_dict()) all[name] = tensor.detach().cpu();
  return all;
}

inline void expect_equal(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(found.at(name).equal(tensor)) << name;
}

}  // namespace lockstep::test::accelerator
