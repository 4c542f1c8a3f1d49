// A small model that trains under each strategy with each optimizer, always on the same batches:
// the result depends neither on the strategy nor on the number of ranks.
#pragma once

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/local.h>
#include <lockstep/optim/adamw.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "checkpoint/folders.h"
#include "checkpoint/layout_json.h"
#include "support/messages.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

using Level = std::optional<ShardLevel>;  // nullopt: DistributedDataParallel

inline const std::vector<Level> all_strategies = {std::nullopt, ShardLevel::optimizer,
                                                  ShardLevel::gradients, ShardLevel::full};

inline std::string name_of(const Level& level) {
  if (!level) return "ddp";
  if (*level == ShardLevel::full) return "full";
  return *level == ShardLevel::gradients ? "gradients" : "optimizer";
}

// A layer that shares the weight of another layer.
struct TiedLayerImpl : torch::nn::Module {
  explicit TiedLayerImpl(const at::Tensor& of_another)
      : weight(register_parameter("weight", of_another)) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(TiedLayer);

// A convolution with a channels_last weight, a batch norm with buffers, a tied weight, and a
// parameter with one element.
struct SmallModel : torch::nn::Module {
  SmallModel()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 2)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(3))),
        in(register_module("in", torch::nn::Linear(12, 5))),
        out(register_module("out", TiedLayer(in->weight))),
        scale(register_parameter("scale", torch::ones({}))) {
    at::NoGradGuard no_grad;
    double seed = 1;
    for (at::Tensor& parameter : parameters())
      parameter.copy_(at::arange(parameter.numel()).mul(0.1 * seed++).sin().view_as(parameter));
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = norm(conv(x)).flatten(1);
    return scale * (in(hidden) + out(hidden).tanh());
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear in;
  TiedLayer out;
  at::Tensor scale;
};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class Optimizer, class Options, class... More>
MakeOptimizer maker(Options options, More... more) {
  return [=](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options, more...);
  };
}

inline const std::map<std::string, MakeOptimizer>& all_optimizers() {
  using namespace torch::optim;
  static const std::map<std::string, MakeOptimizer> all{
      {"sgd", maker<SGD>(SGDOptions(0.05))},
      {"momentum", maker<SGD>(SGDOptions(0.05).momentum(0.9))},
      {"adam", maker<Adam>(AdamOptions(0.01).amsgrad(true))},
      {"adamw", maker<AdamW>(AdamWOptions(0.01))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))},
      {"adagrad", maker<Adagrad>(AdagradOptions(0.05).initial_accumulator_value(0.1))},
      {"our_sgd", maker<optim::SGD>(SGDOptions(0.05).momentum(0.9))},
      {"our_adam", maker<optim::Adam>(AdamOptions(0.01))},
      {"our_adamw", maker<optim::AdamW>(AdamWOptions(0.01))},
      {"our_adamw_blockwise",
       maker<optim::AdamW>(AdamWOptions(0.01),
                           optim::UpdateOptions{.state = optim::StateFormat::blockwise})}};
  return all;
}

struct Training {
  Training(const Level& level, const std::string& optimizer_name, const Group& group,
           std::vector<std::string> ignored = {})
      : model(std::make_shared<SmallModel>()) {
    if (level)
      handle = fully_shard(model, group,
                           {.units = {"in"}, .level = *level, .ignored = std::move(ignored)});
    else
      handle = DistributedDataParallel(model, group, {.ignored = std::move(ignored)});
    optimizer = all_optimizers().at(optimizer_name)(handle.parameters());
  }

  void step() {
    handle.zero_grad();
    double number = ++steps;
    at::Tensor x = at::arange(2 * 2 * 3 * 3).mul(0.3 * number).cos().view({2, 2, 3, 3});
    model->forward(x).square().mean().backward();
    optimizer->step();
  }

  std::filesystem::path save(const std::filesystem::path& out,
                             const checkpoint::SaveOptions& options = {}) const {
    return checkpoint::save(out, handle, *optimizer, {.step = steps}, options);
  }
  void load(const std::filesystem::path& out) {
    auto found = checkpoint::load_latest(out, handle, *optimizer);
    ASSERT_TRUE(found.has_value());
    steps = static_cast<int>(found->step);
  }

  std::shared_ptr<SmallModel> model;
  Handle handle;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int steps = 0;
};

// Makes `steps` more steps, from the newest checkpoint in `out` if there is one, and saves.
inline void go_on(const std::filesystem::path& out, const Level& level,
                  const std::string& optimizer, int ranks, int steps) {
  run_as_threads(ranks, [&](Group group) {
    Training training(level, optimizer, group);
    if (checkpoint::latest_checkpoint(out)) training.load(out);
    group.barrier().wait();  // otherwise a rank could find the first checkpoint of this call
    for (int i = 0; i < steps; ++i) training.step();
    training.save(out);
  });
}

// Makes two steps and saves them in `files` files; returns the folder.
inline std::filesystem::path save_in_files(const std::filesystem::path& out, const Level& level,
                                           int ranks, int files) {
  run_as_threads(ranks, [&](Group group) {
    Training training(level, "our_adamw", group);
    for (int i = 0; i < 2; ++i) training.step();
    training.save(out, {.sharding = {.files = files}});
  });
  return out / "step-00000002";
}

inline void expect_same_tensors(const std::filesystem::path& found,
                                const std::filesystem::path& expected) {
  auto read = checkpoint::read_safetensors(found), wanted = checkpoint::read_safetensors(expected);
  ASSERT_EQ(read.tensors.size(), wanted.tensors.size());
  for (const auto& [name, tensor] : wanted.tensors) {
    ASSERT_TRUE(read.tensors.contains(name)) << name;
    EXPECT_TRUE(at::equal(read.tensors.at(name), tensor)) << name;
  }
}

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream opened(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(opened), {}};
}

// Returns the names in the folder except LATEST, which has its own tests.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename() != checkpoint::latest_file)
      names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// Checks that model and optimizer of two checkpoints are bitwise equal.
inline void expect_same_checkpoint(const std::filesystem::path& found,
                                   const std::filesystem::path& expected) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    expect_same_tensors(found / name, expected / name);
}

// Checks that all files of two folders are equal.
inline void expect_same_files(const std::filesystem::path& found,
                              const std::filesystem::path& expected) {
  ASSERT_EQ(names_in(found), names_in(expected));
  for (const std::string& name : names_in(expected))
    EXPECT_TRUE(text_of(found / name) == text_of(expected / name)) << name;
}

// Returns the error, which must be the same line on all ranks.
inline std::string refusal(int ranks, const std::function<void(Group)>& action) {
  std::vector<std::string> lines(static_cast<std::size_t>(ranks));
  run_as_threads(ranks, [&](Group group) {
    lines[static_cast<std::size_t>(group.rank())] =
        message_of<CollectiveFailure>([&] { action(group); });
    group.barrier().wait();  // the group is still usable
  });
  for (const std::string& line : lines) EXPECT_EQ(line, lines.front());
  EXPECT_EQ(lines.front().find('\n'), std::string::npos) << lines.front();
  return lines.front();
}

// Updates layout.json for the files as they are now.
inline void reseal(const std::filesystem::path& folder) {
  checkpoint::LayoutJson json =
      checkpoint::parse_json_text(folder, checkpoint::read_json_text(folder));
  checkpoint::seal(json, folder);
  std::ofstream(folder / "layout.json") << checkpoint::json_text(json);
}

// Changes the tensors of a checkpoint file and writes them with new checksums.
inline void change(const std::filesystem::path& file,
                   const std::function<void(checkpoint::NamedTensors&)>& how) {
  checkpoint::Safetensors content = checkpoint::read_safetensors(file);
  how(content.tensors);
  checkpoint::write_safetensors(file, content.tensors, content.metadata);
  if (std::filesystem::exists(file.parent_path() / "layout.json")) reseal(file.parent_path());
}

}  // namespace lockstep::test
