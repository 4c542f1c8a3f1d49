// Pipelines are saved and loaded as everything else: by all ranks that have parts, on any number of
// ranks and axes, to the same files.
#include <lockstep/checkpoint/checkpoint.h>

#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/pipeline/pipeline.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/plan/schedule.h>

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
using test::Engine;
using test::TemporaryFolder;

constexpr int piped_blocks = 6;
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

std::vector<std::string> cuts(int stages) {
  std::vector<std::string> points;
  for (int stage = 1; stage < stages; ++stage)
    points.push_back(std::to_string(piped_blocks * stage / stages));
  return points;
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

enum class Inside { nothing, replicas, shards };

// Ranks of a mesh, pipelines on one axis.
struct Shape {
  int pipeline = 1;  // ranks
  int inside = 1;    // ranks of a stage
  Inside how = Inside::nothing;
  int stages_a_rank = 1;

  [[nodiscard]] int ranks() const { return pipeline * inside; }
  [[nodiscard]] std::string text() const {
    const char* names[] = {"", " x dp ", " x fsdp "};
    return "pp " + std::to_string(pipeline) + names[static_cast<int>(how)] +
           (how == Inside::nothing ? "" : std::to_string(inside)) + ", " +
           std::to_string(stages_a_rank) + " stages a rank";
  }
};

struct PipedTraining {
  PipedTraining(const Shape& shape, const Group& world) : model(blocks()) {
    if (shape.ranks() == 1) {
      handle = DistributedDataParallel(model, world);
    } else {
      Mesh mesh(world, {{"pp", shape.pipeline}, {"in", shape.inside}});
      const int stages = shape.pipeline * shape.stages_a_rank;
      const auto schedule = plan::make_schedule(
          shape.stages_a_rank > 1 ? "interleaved" : "1f1b",
          {.stages = stages, .chunks = shape.stages_a_rank, .micro_batches = micro_batches});
      PipelineOptions options;
      if (shape.how != Inside::nothing) {
        options.all_ranks = mesh.group();
        options.strategy = [=](torch::nn::Module& stage) -> Handle {
          if (shape.how == Inside::replicas) return DistributedDataParallel(stage, mesh["in"]);
          return fully_shard(stage, mesh["in"], {.units = {"*"}, .level = ShardLevel::full});
        };
      }
      Pipeline piped(split(model, cuts(stages)), schedule, mesh["pp"], squared_error, options);
      pipeline = std::make_unique<Pipeline>(std::move(piped));
    }
    optimizer = std::make_unique<torch::optim::AdamW>(own().parameters(), 0.01);
  }

  Handle& own() { return pipeline ? *pipeline : handle; }

  void step() {
    own().zero_grad();
    const PipedBatch batch(++steps);
    if (pipeline) {
      (void)pipeline->step({batch.input}, {batch.target});
    } else {
      const auto inputs = batch.input.chunk(micro_batches),
                 targets = batch.target.chunk(micro_batches);
      for (std::size_t i = 0; i < micro_batches; ++i)
        (squared_error({model->forward(inputs[i])}, {targets[i]}) * (1.0 / micro_batches))
            .backward();
    }
    optimizer->step();
  }

  void save_in(const fs::path& out) { save(out, own(), *optimizer, {.step = steps}); }
  void load_from(const fs::path& out) {
    auto found = load_latest(out, own(), *optimizer);
    ASSERT_TRUE(found.has_value());
    steps = static_cast<int>(found->step);
  }

  torch::nn::Sequential model;
  Handle handle;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int steps = 0;
};

const std::vector<Shape> all_shapes = {
    {.pipeline = 1},
    {.pipeline = 2},
    {.pipeline = 3},
    {.pipeline = 2, .stages_a_rank = 3},
    {.pipeline = 2, .inside = 2, .how = Inside::replicas},
    {.pipeline = 2, .inside = 2, .how = Inside::shards},
    {.pipeline = 2, .inside = 2, .how = Inside::shards, .stages_a_rank = 3}};

void go_on_piped(const fs::path& out, const Shape& shape) {
  run_as_threads(shape.ranks(), [&](const Group& group) {
    PipedTraining training(shape, group);
    if (latest_checkpoint(out)) training.load_from(out);
    Group(group).barrier().wait();  // or a rank looks when the first checkpoint is there already
    training.step();
    training.save_in(out);
  });
}

// The ranks change at each of the stops, and every shape is reached twice.
TEST(CheckpointOfPipelines, GoesOnToTheBitsOfOneProcess) {
  TemporaryFolder alone, often;
  go_on_piped(alone.path(), {.pipeline = 1});
  go_on_piped(often.path(), all_shapes.back());
  for (int round = 0; round < 2; ++round)
    for (const Shape& shape : all_shapes) {
      SCOPED_TRACE(shape.text());
      go_on_piped(alone.path(), {.pipeline = 1});
      go_on_piped(often.path(), shape);
      test::expect_same_checkpoint(*latest_checkpoint(often.path()),
                                   *latest_checkpoint(alone.path()));
      verify(*latest_checkpoint(often.path()));
      if (HasFailure()) return;
    }
  EXPECT_EQ(test::names_in(often.path()).size(), 15u);
}

// What a stage's handle makes of its parts when they are loaded is made of the loaded values.
TEST(CheckpointOfPipelines, TheNextStepIsOfTheLoadedValues) {
  for (const Shape& shape : all_shapes) {
    SCOPED_TRACE(shape.text());
    TemporaryFolder out;
    go_on_piped(out.path(), {.pipeline = 1});
    run_as_threads(shape.ranks(), [&](const Group& group) {
      PipedTraining training(shape, group);
      training.step();  // parameters have been gathered once
      training.load_from(out.path());
      const auto expected = read_safetensors(out / "step-00000001/model.safetensors").tensors;
      for (const auto& [name, tensor] : training.own().state_dict())
        EXPECT_TRUE(tensor.equal(expected.at(name))) << name;
      if (!training.pipeline) return;
      const PipedBatch batch(1);
      at::Tensor found = training.pipeline->evaluate({batch.input}, {batch.target});
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
      save_model(folder / "model.safetensors", training.own());
    });
    auto found = read_safetensors(folder / "model.safetensors").tensors;
    torch::nn::Sequential plain = blocks();
    EXPECT_EQ(found.size(), plain->parameters().size());
    for (const auto& parameter : plain->named_parameters())
      EXPECT_TRUE(found.at(parameter.key()).equal(parameter.value())) << parameter.key();
  }
}

// Else each column of the mesh would save by itself, into the same folder.
TEST(CheckpointOfPipelines, AStrategyNeedsTheGroupOfAllRanks) {
  run_as_threads(4, [&](Group world) {
    Mesh mesh(world, {{"pp", 2}, {"dp", 2}});
    const auto schedule = plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 2});
    auto making = [&](const std::optional<Group>& all_ranks, bool with_strategy) {
      auto model = blocks();
      PipelineOptions options{.all_ranks = all_ranks};
      if (with_strategy)
        options.strategy = [&](torch::nn::Module& stage) -> Handle {
          return DistributedDataParallel(stage, mesh["dp"]);
        };
      return test::message_of<InvalidArgument>([&] {
        Pipeline pipeline(split(model, {"3"}), schedule, mesh["pp"], squared_error, options);
      });
    };
    test::expect_words(making(std::nullopt, true),
                       {"strategy of 2 ranks", "expected PipelineOptions::all_ranks",
                        "(mesh.group()), found none"});
    test::expect_words(making(mesh["pp"], true), {"expected all_ranks of 4 ranks", "found 2"});
    test::expect_words(making(mesh.group(), false),
                       {"all_ranks has 4 ranks, the pipeline 2", "expected a strategy"});
    world.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::checkpoint
