// Pipelines on the simulated accelerator: tied weights, errors of one stage, and deferred models.
#include <lockstep/parallel/join.h>
#include <lockstep/parallel/sharded/deferred.h>

#include "accelerator/small_training.h"
#include "dispatch/lazy_storage.h"
#include "dispatch/thread_generator.h"
#include "support/accelerator/expectations.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_of_pipelines = 3;
constexpr std::uint64_t seed_of_deferred = 11;

struct Piped {
  test::Composition how;
};

void PrintTo(const Piped& what, std::ostream* out) { *out << test::text_of(what.how); }

std::string name_of_piped(const testing::TestParamInfo<Piped>& info) {
  return test::test_name_of(info.param.how);
}

std::vector<Piped> piped_meshes() {
  return {{{.axes = {{"pp", 2}}}},
          {{.axes = {{"pp", 4}}, .schedule = "zb-h1"}},
          {{.axes = {{"pp", 2}}, .schedule = "zbv"}},
          {{.axes = {{"pp", 2}, {"dp", 2}}}}};
}

class TiedWeights : public AcceleratorTest, public testing::WithParamInterface<Piped> {};

// The embedding of a Gpt is also its head, so the first and the last stage use the same weight.
TEST_P(TiedWeights, AreTrainedAsOneOnAllStages) {
  const auto& how = GetParam().how;
  const auto make = [] {
    return test::made_alike([] { return models::Gpt(test::composed_gpt()); }, at::kDouble);
  };
  auto expected = make();
  (void)test::losses_of_one(expected, at::kDouble, steps_of_pipelines);
  run_ranks(test::ranks_of(how), [&](Group world, c10::Device device) {
    auto model = make();
    model->to(device);
    test::Composed composed(model, std::move(world), how);
    const auto optimizer = test::parity_optimizer(at::kDouble, composed.all().parameters());
    for (int step = 0; step < steps_of_pipelines; ++step) {
      const test::TokenBatch batch(step, test::rows_of_step);
      composed.all().zero_grad();
      (void)composed.step(batch.ids.to(device), batch.targets.to(device));
      optimizer->step();
    }
    bool owns = false;
    for (const Part& part : composed.all().named_parameters())
      owns |= part.name == "transformer.wte.weight";
    EXPECT_EQ(owns, composed.mesh().coordinate("pp") == 0);
    const Values found = on_cpu(composed.all());
    for (const auto& item : expected->named_parameters())
      test::expect_close_to(found.at(item.key()), item.value().detach(), 1e-9, item.key());
    // The last stage computes with the new values that the first one sends.
    const test::TokenBatch batch(9, 4);
    const at::NoGradGuard no_grad;
    test::expect_close_to(composed.all().forward({batch.ids.to(device)}).front().cpu(),
                          expected->forward(batch.ids), 1e-9, "outputs");
  });
}

INSTANTIATE_TEST_SUITE_P(OnDevices, TiedWeights, testing::ValuesIn(piped_meshes()), name_of_piped);

enum class FailingPart { forward, loss, backward };

class PipelineErrors : public AcceleratorTest, public testing::WithParamInterface<Piped> {
 protected:
  // Lets the second step fail in a part of the model, on one rank of the first pipeline. A rank
  // that waited until its deadline would have another error.
  static void expect_end_of_all_ranks(FailingPart part);
};

PipelineLoss loss_that_fails(FailingPart part, bool fails) {
  return [=](const Tensors& outputs, const Tensors& targets) {
    const bool is_loss = fails && part == FailingPart::loss;
    if (is_loss) throw std::runtime_error("a bad batch");
    at::Tensor loss = token_loss(outputs, targets);
    if (fails && part == FailingPart::backward)
      loss.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a bad batch"); });
    return loss;
  };
}

void PipelineErrors::expect_end_of_all_ranks(FailingPart part) {
  run_ranks(test::ranks_of(GetParam().how), [&](Group world, c10::Device device) {
    test::Composition how = GetParam().how;
    int step = 0;
    bool is_chosen = false;
    how.before_forward = [&] {
      if (step == 1 && is_chosen && part == FailingPart::forward)
        throw std::runtime_error("a bad batch");
    };
    auto model = models::Gpt(test::composed_gpt());
    model->to(device);
    test::Composed composed(model, std::move(world), how);
    const bool has_loss_first = how.schedule == "zbv" && part != FailingPart::forward;
    is_chosen =
        composed.all().data().rank() == 0 &&
        composed.mesh().coordinate("pp") == (has_loss_first ? 0 : test::size_of(how, "pp") - 1);
    std::string error;
    try {
      for (; step < 3; ++step) {
        const test::TokenBatch batch(step, test::rows_of_step);
        (void)composed.all().step({batch.ids.to(device)}, {batch.targets.to(device)},
                                  loss_that_fails(part, step == 1 && is_chosen));
      }
    } catch (const std::exception& problem) {
      error = problem.what();
    }
    // A rank that does not read the loss may get the error from its next call.
    EXPECT_TRUE(step == 1 || (step == 2 && !is_chosen)) << step;
    // Ranks of another pipeline may learn first that a rank has left the group of the gradients.
    if (part != FailingPart::backward || error.find("left in order") == std::string::npos)
      test::expect_contains(error, "a bad batch");
    Group all = composed.mesh().group();
    EXPECT_THROW(all.barrier().wait(), Aborted);
  });
  // A rank may wait for a sum that the others no longer launch, until its group ends.
  if (part == FailingPart::backward) expect_no_faults_but(Fault::stall);
}

TEST_P(PipelineErrors, OfAForwardAreToldToAllRanks) {
  expect_end_of_all_ranks(FailingPart::forward);
}

TEST_P(PipelineErrors, OfALossAreToldToAllRanks) { expect_end_of_all_ranks(FailingPart::loss); }

TEST_P(PipelineErrors, OfABackwardAreToldToAllRanks) {
  expect_end_of_all_ranks(FailingPart::backward);
}

INSTANTIATE_TEST_SUITE_P(OnDevices, PipelineErrors, testing::ValuesIn(piped_meshes()),
                         name_of_piped);

class PipelineJoins : public AcceleratorTest {};

TEST_F(PipelineJoins, AreRefusedOnAllRanksAndThePipelineStaysUsable) {
  run_ranks(2, [](const Group& world, c10::Device device) {
    auto model = models::Gpt(test::composed_gpt());
    model->to(device);
    test::Composed composed(model, world, {.axes = {{"pp", 2}}});
    test::expect_contains(
        test::message_of<InvalidArgument>([&] { const Join join({&composed.all().joinable()}); }),
        "Join: expected a handle of DistributedDataParallel or fully_shard()");
    const test::TokenBatch batch(0, test::rows_of_step);
    EXPECT_GT(composed.step(batch.ids.to(device), batch.targets.to(device)), 0);
  });
}

class DeferredPipelines : public AcceleratorTest, public testing::WithParamInterface<Piped> {
 protected:
  void SetUp() override {
    AcceleratorTest::SetUp();
    dispatch::ThreadGenerator::prepare();
  }
};

TEST_P(DeferredPipelines, TrainAsOneProcess) {
  const auto& how = GetParam().how;
  const auto make = [] { return models::Gpt(test::composed_gpt()); };
  const auto expected = [&] {
    const dispatch::ThreadGenerator generator(seed_of_deferred);
    return test::losses_of_one(make(), at::kFloat, steps_of_pipelines);
  }();
  run_ranks(test::ranks_of(how), [&](Group world, c10::Device device) {
    const dispatch::ThreadGenerator generator(seed_of_deferred);
    auto model = deferred(make, {.smallest = 1});
    move_to(*model, device);
    test::Composed composed(model, std::move(world), how);
    for (const at::Tensor& parameter : composed.all().parameters())
      EXPECT_EQ(parameter.device(), device);
    if (!composed.has("fsdp") && !composed.has("tp"))
      EXPECT_TRUE(std::ranges::any_of(model->parameters(), [](const at::Tensor& parameter) {
        return !dispatch::has_memory(parameter);
      })) << "of other stages";
    const auto optimizer = test::parity_optimizer(at::kFloat, composed.all().parameters());
    for (int step = 0; step < steps_of_pipelines; ++step) {
      const test::TokenBatch batch(step, test::rows_of_step);
      composed.all().zero_grad();
      const double loss = composed.step(batch.ids.to(device), batch.targets.to(device));
      optimizer->step();
      EXPECT_NEAR(loss, expected.at(step), 1e-5 * std::abs(expected.at(step))) << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OnDevices, DeferredPipelines,
                         testing::Values(Piped{{.axes = {{"pp", 2}}}},
                                         Piped{{.axes = {{"pp", 2}}, .schedule = "zbv"}},
                                         Piped{{.axes = {{"pp", 2}, {"dp", 2}}}},
                                         Piped{{.axes = {{"pp", 2}, {"fsdp", 2}}}},
                                         Piped{{.axes = {{"pp", 2}, {"tp", 2}}}}),
                         name_of_piped);

}  // namespace
