// Messages between stages: how long they are kept, and what may change from step to step.
#include <lockstep/parallel/pipeline/pipeline.h>

#include "parallel/pipeline/batch.h"
#include "parallel/pipeline/support.h"
#include "parallel/post_orders.h"
#include "support/torch/backend_test.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <ATen/autocast_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

class PipelineMessages : public BackendTest {};

void freeze(torch::nn::Module& module, bool is_frozen) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(!is_frozen);
}

// Freezes a whole stage, then a part of it, then nothing: messages require a gradient or not.
TEST_P(PipelineMessages, ALayerMayBeFrozenBetweenSteps) {
  for (const char* name : {"1f1b", "zbv"})
    run([&](Group group) {
      const auto schedule = plan::make_schedule(
          name, {.stages = group.size() * (*name == 'z' ? 2 : 1), .micro_batches = 4});
      auto model = blocks(block_count), plain = blocks(block_count);
      Pipeline pipeline(split(model, even_points(block_count, schedule.stages)), schedule, group,
                        squared_error);
      const StageForward forward = [&](const Tensors& x) { return Tensors{plain->forward(x[0])}; };
      for (const std::size_t frozen : {0, 1, 7, 2, 0, 8}) {
        for (std::size_t i = 0; i < block_count; ++i) {
          // The last block is always trained.
          const bool is_frozen = i < std::min<std::size_t>(frozen, block_count - 1);
          freeze(*model->ptr(i), is_frozen);
          freeze(*plain->ptr(i), is_frozen);
        }
        pipeline.zero_grad();
        plain->zero_grad();
        const PipedBatch batch = piped_batch(8, static_cast<std::int64_t>(frozen));
        expect_same_bits(pipeline.step(batch.inputs, batch.targets),
                         one_process_step(forward, squared_error, batch, 4), "loss");
        expect_gradients(pipeline, gradients_of(*plain), std::to_string(frozen) + " frozen");
      }
    });
}

// Under autocast, messages have another dtype.
TEST_P(PipelineMessages, AutocastMayChangeBetweenCalls) {
  run([](Group group) {
    torch::nn::Sequential model;
    for (int i = 0; i < block_count; ++i)
      model->push_back(torch::nn::Linear(block_width, block_width));
    fill_parameters(*model, 5);
    Pipeline pipeline(split(model, even_points(block_count, group.size())),
                      plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 4}),
                      group, squared_error);
    const PipedBatch batch = piped_batch(8, 1);
    const at::Tensor expected = pipeline.evaluate(batch.inputs, batch.targets);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    for (bool casts : {true, false, true, false}) {
      at::autocast::set_autocast_enabled(at::kCPU, casts);
      const at::Tensor loss = pipeline.evaluate(batch.inputs, batch.targets);
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), casts ? 1e-2 : 0);
    }
  });
}

// 1f1b keeps few activations: outputs of the first stage that the next one has received are freed
// before the step ends.
TEST_P(PipelineMessages, WhatHasArrivedIsNotKept) {
  run([&](Group group) {
    if (group.size() == 1) return;
    constexpr int micro_batches = 16;
    auto model = blocks(block_count);
    auto stages = split(model, even_points(block_count, group.size()));
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
    std::size_t most = 0;
    stages[0].forward = [&, inner = stages[0].forward](const Tensors& inputs) {
      most = std::max<std::size_t>(most, std::ranges::count_if(made, [](const auto& storage) {
                                     return storage.use_count() > 0;
                                   }));
      Tensors outputs = inner(inputs);
      auto* storage = outputs.front().storage().unsafeGetStorageImpl();
      made.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
      return outputs;
    };
    Pipeline pipeline(
        stages,
        plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = micro_batches}),
        group, squared_error);
    const PipedBatch batch = piped_batch(2 * micro_batches, 1);
    (void)pipeline.step(batch.inputs, batch.targets);
    if (group.rank() == 0) {
      EXPECT_EQ(made.size(), micro_batches);
      // Forwards whose backward is still to come.
      EXPECT_LE(most, group.size() + 1);
    }
  });
}

// Messages of 80 KiB. An in-place layer modifies the output of a stage.
torch::nn::Sequential wide_model() {
  constexpr std::int64_t width = 160;
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/i % 2 == 0)));
  }
  fill_parameters(*model, 5);
  return model;
}

TEST_P(PipelineMessages, TwoPipelinesOnOneGroupTakeTurns) {
  run([](Group group) {
    constexpr int micro_batches = 4;
    std::vector<std::string> points;
    for (int stage = 1; stage < group.size(); ++stage)
      points.push_back(std::to_string(16 * stage / group.size()));
    const auto make = [&] {
      return Pipeline(
          split(wide_model(), points),
          plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = micro_batches}),
          group, squared_error);
    };
    Pipeline one = make(), other = make();
    auto plain = wide_model();
    const StageForward forward = [&](const Tensors& x) { return Tensors{plain->forward(x[0])}; };
    for (int i = 0; i < 2; ++i) {
      const PipedBatch batch{{values({128 * micro_batches, 160}, i)},
                             {values({128 * micro_batches, 160}, i + 100)}};
      const at::Tensor due = one_process_step(forward, squared_error, batch, micro_batches);
      expect_same_bits(one.step(batch.inputs, batch.targets), due, "loss of one");
      expect_same_bits(other.step(batch.inputs, batch.targets), due, "loss of the other");
    }
  });
}

// 10 rows in 4 micro-batches are 2, 3, 2 and 3. The next step, of as many rows, exchanges no sizes.
TEST(PipelineSizes, AreToldOnceForEachNumberOfRows) {
  PostOrders orders;
  orders.run(2, [](Group group) {
    Pipeline pipeline(split(blocks(2), {"1"}),
                      plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 4}), group,
                      squared_error);
    for (int step = 0; step < 2; ++step) {
      const PipedBatch batch = piped_batch(10, step);
      (void)pipeline.step(batch.inputs, batch.targets);
    }
  });
  for (const int rank : {0, 1}) {
    std::vector<std::string> sizes;
    for (const std::string& post : orders.of(rank))
      if (post.find("sizes of") != std::string::npos) sizes.push_back(post);
    EXPECT_EQ(sizes, (std::vector<std::string>{"world 0->1 #1 'sizes of 0F0'",
                                               "world 0->1 #3 'sizes of 0F1'"}));
  }
}

TEST(PipelineSizes, OfAMessageThatDescribesNoTensorsAreAnError) {
  const pipeline::Specs specs = pipeline::specs_of({at::ones({2, 3}), at::ones({}, at::kLong)});
  at::Tensor message = pipeline::message_of(specs, "0F0");
  EXPECT_EQ(pipeline::specs_in(message, "0F0"), specs);
  for (const auto& [place, number] : {std::pair(0, 0), {0, 1000}, {1, -1}, {3, 1 << 20}}) {
    at::Tensor wrong = message.clone();
    wrong[place] = number;
    EXPECT_EQ(test::message_of<Mismatch>([&] { (void)pipeline::specs_in(wrong, "0F0"); }),
              "0F0: expected a description of tensors, found number " + std::to_string(number));
  }
}

TEST(PipelineBatch, OfARankWhoseNumbersMeanNoCallIsAnError) {
  run_as_threads(2, [](Group group) {
    const Tensors rows{at::ones({4, 2})};
    if (group.rank() == 1) {
      const at::Tensor wrong = at::full({6}, 1 << 20, at::kLong);
      group.all_gather(at::zeros({2, 6}, at::kLong), wrong, {.tag = "rows of a batch"}).wait();
      return;
    }
    EXPECT_EQ(test::message_of<Mismatch>([&] {
                (void)pipeline::Batch(group, pipeline::StepKind::evaluate,
                                      {.inputs = &rows, .targets = &rows}, 1, 0, 1, std::nullopt);
              }),
              "pipeline: rank 0 called evaluate() where rank 1 called an unknown function");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineMessages, every_backend({1, 2, 4}), backend_test_name);

}  // namespace
}  // namespace lockstep
