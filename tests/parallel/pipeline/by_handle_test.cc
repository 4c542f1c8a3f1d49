// What stages pass on by handle: the same bits as copies, and nothing of it is copied.
#include <lockstep/parallel/pipeline/pipeline.h>

#include "parallel/pipeline/support.h"
#include "support/torch/engine_test.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace test;

class PipelineByHandle : public EngineTest {};

constexpr std::int64_t width = 160, rows = 128;  // of a micro-batch: 80 KiB
constexpr int layers = 6, micro_batches = 4;

torch::nn::Sequential wide_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/i % 2 == 0)));
  }
  fill_parameters(*model, 5);
  return model;
}

PipedBatch wide_batch(int step) {
  return {{values({rows * micro_batches, width}, step)},
          {values({rows * micro_batches, width}, step + 100)}};
}

std::vector<std::string> points_of(int stages) {
  std::vector<std::string> points;
  for (int stage = 1; stage < stages; ++stage)
    points.push_back(std::to_string(2 * (layers * stage / stages)));
  return points;
}

struct Trained {
  std::vector<at::Tensor> losses, parameters;
  GroupTraffic traffic;
};

Trained train(Group group, const std::string& name, bool by_handle) {
  const int stages = group.size() * (name == "zbv" ? 2 : 1);
  auto model = wide_model();
  Pipeline pipeline(split(model, points_of(stages)),
                    plan::make_schedule(name, {.stages = stages, .micro_batches = micro_batches}),
                    group, squared_error, {.by_handle = by_handle});
  torch::optim::SGD sgd(pipeline.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained trained;
  const GroupTraffic before = group.traffic();
  for (int step = 0; step < 2; ++step) {
    const PipedBatch batch = wide_batch(step);
    pipeline.zero_grad();
    trained.losses.push_back(pipeline.step(batch.inputs, batch.targets));
    sgd.step();
    trained.losses.push_back(pipeline.evaluate(batch.inputs, batch.targets));
  }
  trained.traffic = {.bytes = group.traffic().bytes - before.bytes,
                     .bytes_by_handle = group.traffic().bytes_by_handle - before.bytes_by_handle};
  for (const NamedPart& part : pipeline.named_parameters())
    trained.parameters.push_back(dispatch::values_of(part.tensor.detach()).clone());
  return trained;
}

TEST_P(PipelineByHandle, TheSameBitsAsCopies) {
  for (const char* name : {"1f1b", "zbv"})
    run([&](Group group) {
      const Trained copied = train(group, name, false), handed = train(group, name, true);
      ASSERT_EQ(handed.losses.size(), copied.losses.size());
      for (std::size_t i = 0; i < handed.losses.size(); ++i)
        expect_same_bits(handed.losses[i], copied.losses[i], "loss " + std::to_string(i));
      for (std::size_t i = 0; i < handed.parameters.size(); ++i)
        expect_same_bits(handed.parameters[i], copied.parameters[i], "a parameter");
      EXPECT_EQ(copied.traffic.bytes_by_handle, 0);
      const std::int64_t payload = 4 * rows * width;
      EXPECT_GE(copied.traffic.bytes, 2 * micro_batches * payload);
      const int other = group.rank() == 0 ? 1 : 0;
      if (!group.passes_handles(other, payload)) return;
      EXPECT_LT(handed.traffic.bytes, payload) << "what else is sent is small";
      EXPECT_EQ(handed.traffic.bytes_by_handle % payload, 0);
      EXPECT_GE(handed.traffic.bytes_by_handle, 2 * micro_batches * payload);
      EXPECT_LE(handed.traffic.bytes_by_handle, copied.traffic.bytes);
    });
}

// A stage that gives the same memory for every micro-batch, and one that changes what it is given.
TEST_P(PipelineByHandle, StagesMayWriteIntoWhatTheyGaveAndGot) {
  run([](Group group) {
    if (group.size() != 2 || group.backend() != "shm") return;
    auto model = wide_model();
    auto stages = split(model, points_of(2));
    at::Tensor buffer = at::empty({rows, width});
    stages[0].forward = [inner = stages[0].forward, buffer](const Tensors& inputs) {
      buffer.copy_(inner(inputs)[0]);
      return Tensors{buffer};
    };
    stages[1].forward = [inner = stages[1].forward](const Tensors& inputs) {
      return inner({inputs[0].mul_(2)});
    };
    Pipeline pipeline(stages,
                      plan::make_schedule("gpipe", {.stages = 2, .micro_batches = micro_batches}),
                      group, squared_error);
    const PipedBatch batch = wide_batch(1);
    for (int i = 0; i < 3; ++i) {
      const Tensors found = pipeline.forward(batch.inputs);
      if (group.rank() == 0) continue;
      at::NoGradGuard no_grad;
      const auto plain = split(wide_model(), points_of(2));
      std::vector<at::Tensor> parts;
      for (const at::Tensor& part : batch.inputs[0].chunk(micro_batches))
        parts.push_back(plain[1].forward({plain[0].forward({part})[0] * 2})[0]);
      expect_same_bits(found.at(0), at::cat(parts), "outputs");
    }
  });
}

TEST_P(PipelineByHandle, TwoPipelinesOnOneGroupTakeTurns) {
  run([](Group group) {
    const auto make = [&] {
      return Pipeline(
          split(wide_model(), points_of(group.size())),
          plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = micro_batches}),
          group, squared_error);
    };
    Pipeline one = make(), other = make();
    for (int i = 0; i < 2; ++i) {
      const PipedBatch batch = wide_batch(i);
      expect_same_bits(one.step(batch.inputs, batch.targets),
                       other.step(batch.inputs, batch.targets), "loss");
    }
  });
}

TEST_P(PipelineByHandle, AllRanksDoItOrNone) {
  run([](Group group) {
    const auto make = [&] {
      return Pipeline(split(wide_model(), points_of(group.size())),
                      plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 4}),
                      group, squared_error, {.by_handle = group.rank() == 0});
    };
    EXPECT_THROW((void)make(), Mismatch);
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, PipelineByHandle, every_engine({2}), engine_test_name);

}  // namespace
}  // namespace lockstep
