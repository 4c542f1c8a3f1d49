// A failure on one rank of a pipeline is reported to all ranks.
#include <lockstep/parallel/pipeline/pipeline.h>

#include <lockstep/comm/init.h>
#include <lockstep/parallel/parallelize.h>

#include "parallel/pipeline/support.h"
#include "support/processes.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <stdexcept>

namespace lockstep {
namespace {

using namespace test;

constexpr int ranks = 3;

plan::Schedule schedule_of(std::string_view name) {
  return plan::make_schedule(name, {.stages = ranks, .micro_batches = 6});
}

// Returns stages, one of which runs `deed` in its `call`-th forward.
std::vector<Stage> with_deed(int stage, int call, std::function<void()> deed) {
  auto model = blocks(ranks);
  std::vector<Stage> stages = split(model, even_points(ranks, ranks));
  Stage& chosen = stages[static_cast<std::size_t>(stage)];
  chosen.forward = [inner = chosen.forward, call, deed = std::move(deed),
                    calls = 0](const Tensors& inputs) mutable {
    if (++calls == call) deed();
    return inner(inputs);
  };
  return stages;
}

class PipelineFailsOn : public BackendTest {};

TEST_P(PipelineFailsOn, AStageThatThrowsIsNamedOnEveryRank) {
  for (int stage = 0; stage < ranks; ++stage)
    run([&](Group group) {
      Pipeline pipeline(
          with_deed(stage, 3, [] { throw std::runtime_error("no room\nfor the batch"); }),
          schedule_of("1f1b"), group, squared_error);
      const PipedBatch batch = piped_batch(12, 1);
      std::string text;
      try {
        (void)pipeline.step(batch.inputs, batch.targets);
        ADD_FAILURE() << "no error";
      } catch (const Aborted& error) {
        text = error.what();
        EXPECT_NE(group.rank(), stage);
        const std::string number = std::to_string(stage);
        expect_contains(text, "rank " + number + " ended the group: " + number +
                                  "F2 of the pipeline failed: no room");
      } catch (const std::runtime_error& error) {
        text = error.what();
        EXPECT_EQ(group.rank(), stage) << text;
        EXPECT_EQ(text, "no room\nfor the batch");
      }
    });
}

TEST_P(PipelineFailsOn, ABackwardThatThrowsToo) {
  run([&](Group group) {
    auto model = blocks(ranks);
    auto stages = split(model, even_points(ranks, ranks));
    model->parameters()[9].register_hook([](const at::Tensor& gradient) {
      throw std::runtime_error("a hook of stage 1");
      return gradient;
    });
    Pipeline pipeline(stages, schedule_of("zb-h1"), group, squared_error);
    const PipedBatch batch = piped_batch(12, 1);
    const std::string text = [&]() -> std::string {
      try {
        (void)pipeline.step(batch.inputs, batch.targets);
      } catch (const std::exception& error) {
        return error.what();
      }
      return "no error";
    }();
    expect_contains(text, "a hook of stage 1");
    if (group.rank() != 1)
      expect_contains(text, "rank 1 ended the group: 1W0 of the pipeline failed: ");
  });
}

TEST_P(PipelineFailsOn, OutputsOfOtherSizesThanBeforeAreNamed) {
  run([&](Group group) {
    auto model = blocks(ranks);
    auto stages = split(model, even_points(ranks, ranks));
    int calls = 0;
    stages[0].forward = [&calls, inner = stages[0].forward](const Tensors& inputs) {
      const Tensors outputs = inner(inputs);
      return ++calls > 8 ? Tensors{outputs.front().narrow(0, 0, 1)} : outputs;
    };
    Pipeline pipeline(stages, schedule_of("1f1b"), group, squared_error);
    const PipedBatch batch = piped_batch(12, 1);
    (void)pipeline.step(batch.inputs, batch.targets);
    try {
      (void)pipeline.step(batch.inputs, batch.targets);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      expect_contains(
          error.what(),
          "0F2: expected the outputs of earlier micro-batches of 2 rows, Float [2, 6], found "
          "Float [1, 6]");
    }
  });
}

TEST_P(PipelineFailsOn, ABatchThatIsNoneLeavesTheGroupAlive) {
  run([&](Group group) {
    auto model = blocks(ranks);
    Pipeline pipeline(split(model, even_points(ranks, ranks)), schedule_of("1f1b"), group,
                      squared_error);
    const PipedBatch batch = piped_batch(12, 1), small = piped_batch(5, 1);
    const auto refused = [&](const Tensors& inputs, const Tensors& targets) {
      return message_of<InvalidArgument>([&] { (void)pipeline.step(inputs, targets); });
    };
    EXPECT_EQ(refused({}, batch.targets), "step(): inputs: expected tensors on rank 0, found none");
    EXPECT_EQ(refused(small.inputs, small.targets),
              "step(): inputs: expected a row for each of 6 micro-batches, found 5");
    EXPECT_EQ(refused(batch.inputs, small.targets),
              "step(): targets: expected a row for each of 6 micro-batches, found 5");
    EXPECT_EQ(refused(batch.inputs, piped_batch(13, 1).targets),
              "step(): targets: expected 12 rows, as the inputs have, found 13");
    EXPECT_EQ(refused({at::ones({})}, batch.targets),
              "step(): inputs: expected tensors with rows on rank 0, found one without dims or "
              "undefined");
    EXPECT_EQ(refused({batch.inputs[0], small.inputs[0]}, batch.targets),
              "step(): inputs: expected tensors with equally many rows on rank 0, found different "
              "ones");
    EXPECT_TRUE(pipeline.step(batch.inputs, batch.targets).defined());
  });
}

TEST_P(PipelineFailsOn, RanksWithDifferentSchedulesAreAMismatch) {
  run([&](Group group) {
    auto model = blocks(ranks);
    const auto stages = split(model, even_points(ranks, ranks));
    expect_contains(message_of<Mismatch>([&] {
                      (void)Pipeline(stages, schedule_of(group.rank() == 1 ? "gpipe" : "1f1b"),
                                     group, squared_error);
                    }),
                    "schedule gpipe");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineFailsOn, every_backend({ranks}), backend_test_name);

TEST(PipelineFails, ArgumentsThatDoNotFitAreOneLine) {
  auto model = blocks(2);
  const auto stages = split(model, {"1"});
  const auto refused = [&](const plan::Schedule& schedule, PipelineLoss loss) {
    return message_of<InvalidArgument>(
        [&] { (void)Pipeline(stages, schedule, Group(), std::move(loss)); });
  };
  EXPECT_EQ(refused(plan::make_schedule("1f1b", {.stages = 1}), squared_error),
            "Pipeline: expected 1 stages, as schedule 1f1b has, found 2");
  EXPECT_EQ(refused(plan::make_schedule("1f1b", {.stages = 2}), squared_error),
            "Pipeline: expected a schedule of 1 ranks, as group one has, found 1f1b of 2");
  EXPECT_EQ(refused(plan::make_schedule("zbv", {.stages = 2}), nullptr),
            "Pipeline: the loss must not be empty");
  plan::Schedule broken = plan::make_schedule("zbv", {.stages = 2});
  broken.ranks[0].pop_back();
  EXPECT_EQ(refused(broken, squared_error),
            "schedule zbv: rank 0: 0I0: expected its gradient of weights 0W0, found none");
}

// The other pipeline waits to average gradients that will never come.
TEST(PipelineFails, OtherPipelinesOfTheMeshAreToldAtOnce) {
  run_group(
      BackendKind::shm, 4,
      [&](Group world) {
        const Mesh mesh(world, {{"pp", 2}, {"dp", 2}});
        auto model = blocks(4);
        ParallelPlan plan = parallel_plan(model);
        StageForward& second = plan.pieces[2].forward;
        second = [inner = second, fails = mesh.coordinate("dp") == 0,
                  calls = 0](const Tensors& inputs) mutable {
          if (fails && ++calls == 2) throw std::runtime_error("no room");
          return inner(inputs);
        };
        ParallelModel pipeline = parallelize(model.ptr(), mesh, plan, {.micro_batches = 3});
        const PipedBatch batch = piped_batch(8, 1);
        const auto begin = std::chrono::steady_clock::now();
        try {
          (void)pipeline.step(batch.inputs, batch.targets, squared_error);
          ADD_FAILURE() << "no error";
        } catch (const Aborted& error) {
          expect_contains(error.what(), "1F1 of the pipeline failed: no room");
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "no room");
        }
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
        Group all = mesh.group();
        EXPECT_THROW(all.barrier().wait(), Aborted);
      },
      /*timeout=*/rank_limit);
}

}  // namespace
}  // namespace lockstep
