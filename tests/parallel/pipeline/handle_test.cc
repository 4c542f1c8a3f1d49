// A Pipeline is a Handle: clipping over all stages, zero_grad(), states, several tensors, ties,
// replicas of stages.
#include <lockstep/parallel/pipeline/pipeline.h>

#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/sgd.h>
#include <lockstep/parallel/parallelize.h>

#include "parallel/pipeline/support.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/utils/clip_grad.h>

namespace lockstep {
namespace {

using namespace test;

class PipelineHandle : public BackendTest {};

struct Piped {
  torch::nn::Sequential model = blocks(block_count), plain = blocks(block_count);
  plan::Schedule schedule;
  Pipeline pipeline;
  StageForward forward;

  Piped(Group group, std::string_view name, int micro_batches = 4)
      : schedule(plan::make_schedule(name, {.stages = group.size() * (name == "zbv" ? 2 : 1),
                                            .micro_batches = micro_batches})),
        pipeline(split(model, even_points(block_count, schedule.stages)), schedule, group,
                 squared_error),
        forward([this](const Tensors& x) { return Tensors{plain->forward(x[0])}; }) {}
  void step(int seed) {
    const PipedBatch batch = piped_batch(10, seed);
    (void)pipeline.step(batch.inputs, batch.targets);
    (void)one_process_step(forward, squared_error, batch, schedule.micro_batches);
  }
};

TEST_P(PipelineHandle, ClipsByTheNormOfAllStages) {
  run([&](Group group) {
    Piped piped(group, "1f1b");
    piped.step(1);
    const double expected = torch::nn::utils::clip_grad_norm_(piped.plain->parameters(), 0.01);
    EXPECT_NEAR(piped.pipeline.clip_grad_norm(0.01), expected, 1e-6 * expected);
    const Gradients gradients = gradients_of(*piped.plain);
    for (const Part& part : piped.pipeline.named_parameters())
      EXPECT_TRUE(at::allclose(dispatch::values_of(part.tensor.grad()), gradients.at(part.name)))
          << part.name;
  });
}

// A rank whose stages have no gradients computes the same norm and scale as the others.
TEST_P(PipelineHandle, ClipsWhereAStageIsFrozen) {
  run([&](Group group) {
    Piped piped(group, "1f1b");
    const int frozen = block_count / group.size();
    for (torch::nn::Sequential model : {piped.model, piped.plain})
      for (int i = 0; i < frozen; ++i)
        for (const at::Tensor& parameter : model->ptr(static_cast<std::size_t>(i))->parameters())
          parameter.set_requires_grad(group.size() == 1);
    piped.step(1);
    const double expected = torch::nn::utils::clip_grad_norm_(piped.plain->parameters(), 0.01);
    EXPECT_NEAR(piped.pipeline.clip_grad_norm(0.01), expected, 1e-6 * expected);
  });
}

TEST_P(PipelineHandle, ScalesAndClipsWhereAStageHasNoParameters) {
  run([&](Group group) {
    const auto made = [&] {
      torch::nn::Sequential model;
      for (int stage = 0; stage < group.size(); ++stage) {
        if (stage == 1) {
          model->push_back(torch::nn::Functional(at::tanh));
        } else {
          model->push_back(PipedBlock());
        }
      }
      fill_parameters(*model, 3);
      return model;
    };
    torch::nn::Sequential model = made(), plain = made();
    const auto schedule = plan::make_schedule("1f1b", {.stages = group.size(), .micro_batches = 4});
    const optim::GradScalerOptions scale{.initial_scale = 8};
    optim::GradScaler scaler(scale);
    Pipeline pipeline(split(model, even_points(group.size(), group.size())), schedule, group,
                      [&](const Tensors& outputs, const Tensors& targets) {
                        return scaler.scale(squared_error(outputs, targets));
                      });
    optim::SGD sgd(pipeline.parameters(), torch::optim::SGDOptions(0.1));
    const PipedBatch batch = piped_batch(8, 1);
    (void)scaler.current_scale();
    (void)pipeline.step(batch.inputs, batch.targets);
    (void)one_process_step([&](const Tensors& x) { return Tensors{plain->forward(x[0])}; },
                           squared_error, batch, 4);
    EXPECT_TRUE(scaler.unscale(sgd));
    const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.01);
    EXPECT_NEAR(pipeline.clip_grad_norm(0.01), expected, 1e-6 * expected);
  });
}

// The norm of this rank's parameters would give each rank a different factor.
TEST_P(PipelineHandle, ANormOfThisRankAloneIsRefused) {
  run([&](Group group) {
    Piped piped(group, "1f1b");
    piped.step(1);
    if (group.size() == 1) return;  // it has all parameters
    expect_contains(message_of<InvalidArgument>([&] {
                      torch::nn::utils::clip_grad_norm_(piped.pipeline.parameters(), 1.0);
                    }),
                    "clip_grad_norm()");
  });
}

TEST_P(PipelineHandle, GradientsAddUpUntilTheyAreZeroed) {
  run([&](Group group) {
    Piped piped(group, "zbv");
    piped.step(1);
    piped.step(2);
    expect_gradients(piped.pipeline, gradients_of(*piped.plain), "two steps");
    piped.pipeline.zero_grad();
    for (const at::Tensor& parameter : piped.pipeline.parameters())
      EXPECT_FALSE(parameter.grad().defined());
    piped.plain->zero_grad();
    piped.step(3);
    expect_gradients(piped.pipeline, gradients_of(*piped.plain), "after zero_grad()");
    // Reset the gradients as an optimizer's zero_grad() does.
    for (const at::Tensor& parameter : piped.pipeline.parameters())
      parameter.mutable_grad().reset();
    piped.plain->zero_grad();
    piped.step(4);
    expect_gradients(piped.pipeline, gradients_of(*piped.plain), "after the optimizer's");
    piped.pipeline.zero_grad(/*set_to_none=*/false);
    for (const at::Tensor& parameter : piped.pipeline.parameters())
      EXPECT_EQ(dispatch::values_of(parameter.grad()).count_nonzero().item<std::int64_t>(), 0);
  });
}

TEST_P(PipelineHandle, StatesAreThoseOfTheWholeModel) {
  run([&](Group group) {
    Piped piped(group, "zbv"), other(group, "zbv");
    for (const at::Tensor& parameter : other.pipeline.parameters()) {
      at::NoGradGuard no_grad;
      parameter.detach().zero_();
    }
    const auto state = piped.pipeline.state_dict();
    ASSERT_EQ(state.size(), piped.plain->named_parameters().size());
    other.pipeline.load_state_dict(state);
    for (const auto& [name, tensor] : other.pipeline.state_dict())
      expect_same_bits(tensor, state.at(name), name);
    for (const Part& part : other.pipeline.loading()) part.tensor.zero_();
    std::map<std::string, at::Tensor> parts;
    for (const Part& part : piped.pipeline.state_parts()) parts[part.name] = part.tensor;
    for (const Part& part : other.pipeline.loading()) part.tensor.copy_(parts.at(part.name));
    for (const auto& [name, tensor] : other.pipeline.state_dict())
      expect_same_bits(tensor, state.at(name), name);
    auto unknown = state;
    unknown["9.up.weight"] = at::ones({1});
    EXPECT_EQ(message_of<BadInput>([&] { other.pipeline.load_state_dict(unknown); }),
              "loading a model: found a tensor named 9.up.weight that the model does not have");
    // If one stage lacks a tensor, all ranks throw, before anything is written.
    for (const bool is_missing : {true, false}) {
      auto wrong = state;
      for (auto& [name, tensor] : wrong) tensor = tensor + 1;
      if (is_missing) {
        wrong.erase("0.factor");
      } else {
        wrong["0.factor"] = at::ones({1});
      }
      EXPECT_EQ(message_of<BadInput>([&] { other.pipeline.load_state_dict(wrong); }),
                is_missing ? "loading a model: expected a tensor named 0.factor, found none"
                           : "loading a model: 0.factor: expected shape [6], found [1]");
    }
    for (const auto& [name, tensor] : other.pipeline.state_dict())
      expect_same_bits(tensor, state.at(name), name);
    std::int64_t numbers = 0;
    for (const Part& part : piped.pipeline.state_parts()) numbers += part.tensor.numel();
    at::Tensor all = at::full({1}, numbers, at::kLong);
    group.all_reduce(all).wait();
    std::int64_t expected = 0;
    for (const at::Tensor& parameter : piped.plain->parameters()) expected += parameter.numel();
    EXPECT_EQ(all.item<std::int64_t>(), expected);
    EXPECT_GT(piped.pipeline.memory().whole, 0);
  });
}

// Both stages use the model's buffer, and each rank has its own copy.
TEST(PipelineOfTwoRanks, ABufferOfStagesOnSeveralRanksIsLoadedOnEach) {
  struct Scaled : torch::nn::Module {
    Scaled() : scale(register_buffer("scale", at::ones({1}))) {
      for (const char* name : {"a", "b"}) register_module(name, torch::nn::Linear(4, 4));
      fill_parameters(*this, 3);
    }
    [[nodiscard]] Tensors apply(const char* name, const Tensors& in) {
      auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(named_children()[name]);
      return {layer->forward(in[0]) * scale};
    }
    at::Tensor scale;
  };
  run_as_threads(2, [](Group group) {
    const auto model = std::make_shared<Scaled>();
    std::vector<ModelPiece> pieces;
    for (const char* name : {"a", "b"})
      pieces.push_back({name, {name, "scale"}, [model, name](const Tensors& in) {
                          return model->apply(name, in);
                        }});
    Pipeline pipeline(split(*model, pieces, {"b"}),
                      plan::make_schedule("1f1b", {.stages = 2, .micro_batches = 2}), group,
                      squared_error);
    auto state = pipeline.state_dict();
    EXPECT_EQ(state.size(), 5U);
    state.at("scale") = at::full({1}, 7.0);
    pipeline.load_state_dict(state);
    EXPECT_EQ(model->scale.item<float>(), 7);
    for (const Part& part : pipeline.loading()) part.tensor.fill_(3);
    EXPECT_EQ(model->scale.item<float>(), 3);
    EXPECT_EQ(pipeline.state_dict().at("scale").item<float>(), 3);
  });
}

// Stages send several tensors: one without a gradient, one of integers, one that the next stage
// does not use.
TEST(PipelineOfTwoRanks, PassesSeveralTensors) {
  run_group(BackendKind::shm, 2, [&](Group group) {
    torch::nn::Linear first(block_width, block_width), second(block_width, block_width);
    fill_parameters(*first, 1);
    fill_parameters(*second, 2);
    const StageForward begin = [=](const Tensors& in) mutable {
      const at::Tensor y = first(in[0]);
      return Tensors{y, at::tanh(y), in[1], y.detach(), y * 2};
    };
    const StageForward end = [=](const Tensors& in) mutable {
      return Tensors{second(in[0]) * in[1] + in[2].unsqueeze(1) + in[3]};
    };
    const PipedBatch batch{{values({9, block_width}, 1), at::arange(9)},
                           {values({9, block_width}, 2)}};
    for (const char* name : {"1f1b", "zb-h1"}) {
      const auto schedule = plan::make_schedule(name, {.stages = 2, .micro_batches = 4});
      Pipeline pipeline({stage_of("begin", first.ptr(), begin), stage_of("end", second.ptr(), end)},
                        schedule, group, squared_error);
      pipeline.zero_grad();
      const at::Tensor loss = pipeline.step(batch.inputs, batch.targets);
      auto& own = group.rank() == 0 ? first : second;
      std::vector<at::Tensor> found;
      for (const at::Tensor& parameter : own->parameters())
        found.push_back(parameter.grad().clone());
      pipeline = Pipeline();
      first->zero_grad();
      second->zero_grad();
      const at::Tensor expected = one_process_step(
          [&](const Tensors& in) { return end(begin(in)); }, squared_error, batch, 4);
      expect_same_bits(loss, expected, "loss");
      for (std::size_t i = 0; i < found.size(); ++i)
        expect_same_bits(found[i], own->parameters()[i].grad(), name);
    }
  });
}

// pp 2 x dp 2: each stage has two replicas, whose gradients are averaged.
TEST(PipelineOnAMesh, StagesMayHaveReplicas) {
  for (const char* name : {"1f1b", "zb-h1"})
    run_group(BackendKind::shm, 4, [&](Group world) {
      ParallelModel pipeline = parallelize(blocks(block_count), Mesh(world, {{"pp", 2}, {"dp", 2}}),
                                           {.pipeline = {name}, .micro_batches = 3});
      for (int step = 0; step < 2; ++step) {
        std::vector<Gradients> of_replicas;
        for (int replica = 0; replica < 2; ++replica) {
          auto plain = blocks(block_count);
          const StageForward forward = [&](const Tensors& x) {
            return Tensors{plain->forward(x[0])};
          };
          (void)one_process_step(forward, squared_error, piped_batch(8, 2 * step + replica), 3);
          of_replicas.push_back(gradients_of(*plain));
        }
        const PipedBatch batch = piped_batch(8, 2 * step + pipeline.data().rank());
        pipeline.zero_grad();
        (void)pipeline.step(batch.inputs, batch.targets, squared_error);
        for (const Part& part : pipeline.named_parameters())
          expect_same_bits(part.tensor.grad(),
                           (of_replicas[0].at(part.name) + of_replicas[1].at(part.name)) / 2,
                           part.name);
      }
    });
}

// pp 2 x fsdp 2: each stage's parameters are divided over two ranks.
TEST(PipelineOnAMesh, StagesMayBeSharded) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full})
    for (const char* name : {"1f1b", "zb-h1"})
      run_group(BackendKind::shm, 4, [&](Group world) {
        ParallelModel pipeline =
            parallelize(blocks(block_count), Mesh(world, {{"pp", 2}, {"fsdp", 2}}),
                        {.shard = {.level = level}, .pipeline = {name}, .micro_batches = 3});
        torch::optim::SGD sgd(pipeline.parameters(), 0.1);
        std::vector<torch::nn::Sequential> plain{blocks(block_count), blocks(block_count)};
        for (int step = 0; step < 2; ++step) {
          for (int replica = 0; replica < 2; ++replica) {
            plain[replica]->zero_grad();
            const StageForward forward = [&](const Tensors& x) {
              return Tensors{plain[replica]->forward(x[0])};
            };
            (void)one_process_step(forward, squared_error, piped_batch(8, 2 * step + replica), 3);
          }
          const PipedBatch batch = piped_batch(8, 2 * step + pipeline.data().rank());
          pipeline.zero_grad();
          (void)pipeline.step(batch.inputs, batch.targets, squared_error);
          std::vector<at::Tensor> averages;
          for (std::size_t i = 0; i < plain[0]->parameters().size(); ++i) {
            at::Tensor& one = plain[0]->parameters()[i].mutable_grad();
            one = (one + plain[1]->parameters()[i].grad()) / 2;
            plain[1]->parameters()[i].mutable_grad() = one;
          }
          const double expected = torch::nn::utils::clip_grad_norm_(plain[0]->parameters(), 1e9);
          EXPECT_NEAR(pipeline.clip_grad_norm(1e9), expected, 1e-6 * expected);
          sgd.step();
          at::NoGradGuard no_grad;
          for (auto& replica : plain)
            for (at::Tensor& parameter : replica->parameters())
              parameter.add_(parameter.grad(), -0.1);
        }
        const auto state = pipeline.state_dict();
        for (const auto& parameter : plain[0]->named_parameters())
          expect_same_bits(state.at(parameter.key()), parameter.value().detach(), parameter.key());
      });
}

// Averages that stay in the buffer, have 16 bits, or are made inside no_sync() are not lost by the
// next step.
TEST(PipelineOnAMesh, GradientsOnShardsAddUpOverSteps) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full})
    for (at::ScalarType reduced : {at::kFloat, at::kBFloat16})
      run_group(BackendKind::shm, 4, [&](Group world) {
        ParallelModel pipeline =
            parallelize(blocks(block_count), Mesh(world, {{"pp", 2}, {"fsdp", 2}}),
                        {.shard = {.level = level, .reduce_dtype = reduced}, .micro_batches = 3});
        const auto step = [&](int number) {
          const PipedBatch batch = piped_batch(8, 2 * number + pipeline.data().rank());
          (void)pipeline.step(batch.inputs, batch.targets, squared_error);
        };
        const auto gradients = [&] {
          Tensors all;
          for (const at::Tensor& parameter : pipeline.parameters())
            all.push_back(dispatch::values_of(parameter.grad()).clone());
          return all;
        };
        Tensors expected;
        for (int number : {0, 1}) {
          pipeline.zero_grad();
          step(number);
          Tensors own = gradients();
          for (std::size_t i = 0; i < own.size(); ++i)
            number == 0 ? expected.push_back(own[i]) : void(expected[i].add_(own[i]));
        }
        const auto expect_sum = [&](const char* how) {
          const Tensors found = gradients();
          const double tolerance = reduced == at::kFloat ? 1e-5 : 2e-2;
          for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_TRUE(at::allclose(found[i], expected[i], tolerance, tolerance)) << how << i;
        };
        pipeline.zero_grad();
        for (int number : {0, 1}) step(number);
        expect_sum("steps ");
        pipeline.zero_grad();
        {
          const NoSync scope = pipeline.no_sync();
          step(0);
        }
        step(1);
        expect_sum("no_sync() ");
        {
          const NoSync scope = pipeline.no_sync();
          step(0);
        }
        EXPECT_THROW((void)pipeline.clip_grad_norm(1), InvalidArgument);  // not averaged yet
      });
}

TEST(PipelineOnAMesh, AGradientThatIsHeldKeepsItsValues) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::full})
    run_group(BackendKind::local, 4, [&](Group world) {
      ParallelModel pipeline =
          parallelize(blocks(block_count), Mesh(world, {{"pp", 2}, {"fsdp", 2}}),
                      {.shard = {.level = level}, .micro_batches = 3});
      torch::optim::SGD sgd(pipeline.parameters(), 0.1);
      Tensors held, expected;
      for (int number = 0; number < 4; ++number) {
        const PipedBatch batch = piped_batch(8, 2 * number + pipeline.data().rank());
        (void)pipeline.step(batch.inputs, batch.targets, squared_error);
        for (const at::Tensor& parameter : pipeline.parameters()) {
          held.push_back(parameter.grad());
          expected.push_back(dispatch::values_of(parameter.grad()).clone());
        }
        number < 2 ? sgd.zero_grad() : pipeline.zero_grad();
      }
      for (std::size_t i = 0; i < held.size(); ++i)
        expect_same_bits(held[i], expected[i], std::to_string(i));
    });
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineHandle,
                         testing::Combine(testing::Values(BackendKind::local, BackendKind::shm),
                                          testing::Values(1, 2, 4)),
                         backend_test_name);

}  // namespace
}  // namespace lockstep
