// Checkpoints of pipelines: all ranks that have parts save and load, on any number of ranks and
// axes, and the files are the same.
#include <lockstep/checkpoint/checkpoint.h>

#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>

#include "checkpoint/small_training.h"
#include "support/messages.h"
#include "support/temporary_folder.h"
#include "support/torch/ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::BackendKind;
using test::TemporaryFolder;

constexpr int piped_blocks = 8;  // six between the first and the last one
constexpr std::int64_t piped_width = 6;
constexpr int micro_batches = 6;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({piped_width})))),
        linear(register_module("linear", torch::nn::Linear(piped_width, piped_width))),
        factor(register_parameter("factor", torch::ones({piped_width}))) {}
  at::Tensor forward(const at::Tensor& x) { return x + factor * linear(norm(x)).tanh(); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear linear;
  at::Tensor factor;
};
TORCH_MODULE(Block);

torch::nn::Sequential blocks() {
  torch::nn::Sequential model;
  for (int i = 0; i < piped_blocks; ++i) model->push_back(Block());
  at::NoGradGuard no_grad;
  double seed = 1;
  for (at::Tensor& parameter : model->parameters())
    parameter.copy_(at::arange(parameter.numel()).mul(0.1 * seed++).sin().view_as(parameter));
  return model;
}

struct PipedBatch {
  explicit PipedBatch(int number)
      : input(at::arange(12 * piped_width).mul(0.1 * number).cos().view({12, piped_width})),
        target(at::arange(12 * piped_width).mul(0.2 * number).sin().view({12, piped_width})) {}
  at::Tensor input, target;
};

at::Tensor squared_error(const Tensors& outputs, const Tensors& targets) {
  return (outputs.front() - targets.front()).square().mean();
}

// A mesh with pipelines along one axis.
struct Shape {
  std::vector<MeshAxis> axes;
  int stages_a_rank = 1;

  [[nodiscard]] int ranks() const {
    int ranks = 1;
    for (const MeshAxis& axis : axes) ranks *= axis.size;
    return ranks;
  }
  [[nodiscard]] std::string text() const {
    return MeshLayout(axes, ranks()).describe() + ", " + std::to_string(stages_a_rank) +
           " stages a rank";
  }
};

struct PipedTraining {
  PipedTraining(const Shape& shape, const Group& world)
      : model(parallelize(
            blocks(), Mesh(world, shape.axes),
            {.shard = {.units = {"*"}},
             .pipeline = {shape.stages_a_rank > 1 ? "interleaved" : "1f1b", shape.stages_a_rank},
             .micro_batches = micro_batches})),
        optimizer(model.parameters(), 0.01) {}

  void step() {
    model.zero_grad();
    const PipedBatch batch(++steps);
    (void)model.step({batch.input}, {batch.target}, squared_error);
    optimizer.step();
  }

  void save_in(const fs::path& out) { save(out, model, optimizer, {.step = steps}); }
  void load_from(const fs::path& out) {
    auto found = load_latest(out, model, optimizer);
    ASSERT_TRUE(found.has_value());
    steps = static_cast<int>(found->step);
  }

  ParallelModel model;
  torch::optim::AdamW optimizer;
  int steps = 0;
};

const Shape one_rank = {.axes = {{"pp", 1}}};
const std::vector<Shape> all_shapes = {one_rank,
                                       {.axes = {{"pp", 2}}},
                                       {.axes = {{"pp", 3}}},
                                       {.axes = {{"pp", 2}}, .stages_a_rank = 3},
                                       {.axes = {{"pp", 2}, {"dp", 2}}},
                                       {.axes = {{"pp", 2}, {"fsdp", 2}}},
                                       {.axes = {{"pp", 2}, {"fsdp", 2}}, .stages_a_rank = 3}};

void go_on_piped(const fs::path& out, const Shape& shape) {
  run_as_threads(shape.ranks(), [&](const Group& group) {
    PipedTraining training(shape, group);
    if (latest_checkpoint(out)) training.load_from(out);
    Group(group).barrier().wait();  // otherwise a rank could find the first checkpoint of this call
    training.step();
    training.save_in(out);
  });
}

// The ranks change at each stop, and every shape is reached twice.
TEST(CheckpointOfPipelines, GoesOnToTheBitsOfOneProcess) {
  TemporaryFolder alone, often;
  go_on_piped(alone.path(), one_rank);
  go_on_piped(often.path(), all_shapes.back());
  for (int round = 0; round < 2; ++round)
    for (const Shape& shape : all_shapes) {
      SCOPED_TRACE(shape.text());
      go_on_piped(alone.path(), one_rank);
      go_on_piped(often.path(), shape);
      test::expect_same_checkpoint(*latest_checkpoint(often.path()),
                                   *latest_checkpoint(alone.path()));
      verify(*latest_checkpoint(often.path()));
      if (HasFailure()) return;
    }
  EXPECT_EQ(test::names_in(often.path()).size(), 15u);
}

// State that a stage's handle derives from its parameters is derived from the loaded values.
TEST(CheckpointOfPipelines, TheNextStepIsOfTheLoadedValues) {
  for (const Shape& shape : all_shapes) {
    SCOPED_TRACE(shape.text());
    TemporaryFolder out;
    go_on_piped(out.path(), one_rank);
    run_as_threads(shape.ranks(), [&](const Group& group) {
      PipedTraining training(shape, group);
      training.step();  // parameters have been gathered once
      training.load_from(out.path());
      const auto expected = read_safetensors(out / "step-00000001/model.safetensors").tensors;
      for (const auto& [name, tensor] : training.model.state_dict())
        EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
      const PipedBatch batch(1);
      at::Tensor found = training.model.evaluate({batch.input}, {batch.target}, squared_error);
      torch::nn::Sequential plain = blocks();
      DistributedDataParallel plain_handle(plain, Group());
      load_model(out / "step-00000001/model.safetensors", plain_handle);
      at::NoGradGuard no_grad;
      at::Tensor wanted = squared_error({plain->forward(batch.input)}, {batch.target});
      EXPECT_TRUE(at::allclose(found, wanted)) << found << wanted;
    });
  }
}

TEST(CheckpointOfPipelines, TheModelIsOneFileOfAllStages) {
  for (const Shape& shape : all_shapes) {
    SCOPED_TRACE(shape.text());
    TemporaryFolder folder;
    run_as_threads(shape.ranks(), [&](const Group& group) {
      PipedTraining training(shape, group);
      save_model(folder / "model.safetensors", training.model);
    });
    auto found = read_safetensors(folder / "model.safetensors").tensors;
    torch::nn::Sequential plain = blocks();
    EXPECT_EQ(found.size(), plain->parameters().size());
    for (const auto& parameter : plain->named_parameters())
      EXPECT_TRUE(found.at(parameter.key()).equal(parameter.value())) << parameter.key();
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
