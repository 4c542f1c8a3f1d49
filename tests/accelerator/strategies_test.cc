// Every strategy on the simulated accelerator: the losses equal those of one process on the CPU,
// and no synchronisation fault is reported. Schedules run each task as late or as early as
// possible.
#include <lockstep/comm/local.h>

#include "parallel/composition.h"
#include "support/accelerator/expectations.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int compared_steps = 3;
constexpr double tolerance = 1e-10;  // relative, of a loss in double precision

struct Case {
  test::Composition how;
  bool has_experts = false;
};

void PrintTo(const Case& what, std::ostream* out) { *out << test::text_of(what.how); }

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return (info.param.has_experts ? "moe_" : "gpt_") + test::test_name_of(info.param.how);
}

class Strategies : public AcceleratorTest, public testing::WithParamInterface<Case> {
 protected:
  // Compares the losses of all ranks, on their devices, with those of one process.
  template <typename Make>
  static void compare(const Make& make, std::uint64_t seed) {
    const auto& how = GetParam().how;
    const auto expected = test::losses_of_one(make(), at::kDouble, compared_steps, 1, 1);
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    run_ranks(test::ranks_of(how), [&](Group world, c10::Device device) {
      auto model = make();
      model->to(device);
      test::Composed composed(model, std::move(world), how);
      const auto optimizer = test::parity_optimizer(at::kDouble, composed.all().parameters());
      const int communicators = communicators_of(device);
      for (int step = 0; step < compared_steps; ++step) {
        const test::TokenBatch batch(step % 7, test::rows_of_step);
        composed.all().zero_grad();
        const double loss = composed.step(batch.ids.to(device), batch.targets.to(device));
        EXPECT_GT(composed.all().clip_grad_norm(1e9), 0);
        optimizer->step();
        EXPECT_NEAR(loss, expected.at(step), tolerance * std::abs(expected.at(step))) << step;
      }
      if (how.offload) {
        EXPECT_GT(composed.all().checkpoints().released_bytes, 0);
        EXPECT_EQ(composed.all().checkpoints().recomputations, 0);
      }
      EXPECT_EQ(communicators_of(device), communicators) << "made in a step";
      for (const auto& parameter : composed.all().parameters())
        EXPECT_EQ(parameter.device(), how.on_host ? c10::kCPU : device);
    });
  }
};

TEST_P(Strategies, TrainAsOneProcess) {
  for (std::uint64_t seed : {0, 1}) {
    if (GetParam().has_experts)
      compare([] { return test::moe_of(1.5, at::kDouble); }, seed);
    else
      compare(
          [] {
            return test::made_alike([] { return models::Gpt(test::composed_gpt()); }, at::kDouble);
          },
          seed);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<test::Composition> meshes = {
      {.axes = {{"dp", 2}}},
      {.axes = {{"tp", 2}}},
      {.axes = {{"tp", 2}}, .sequence = true},
      {.axes = {{"cp", 2}}},
      {.axes = {{"cp", 2}}, .context = ContextMethod::ulysses},
      {.axes = {{"dp", 2}, {"tp", 2}}},
      {.axes = {{"fsdp", 2}}, .level = ShardLevel::optimizer},
      {.axes = {{"fsdp", 2}}, .level = ShardLevel::gradients},
      {.axes = {{"fsdp", 2}}},
      {.axes = {{"fsdp", 4}}, .checkpoints = true},
      {.axes = {{"fsdp", 2}}, .on_host = true},
      {.axes = {{"pp", 2}}},
      {.axes = {{"pp", 2}}, .schedule = "zbv"},
      {.axes = {{"pp", 2}}, .schedule = "interleaved"},
      {.axes = {{"pp", 4}}, .schedule = "zb-h1"},
      {.axes = {{"pp", 2}, {"dp", 2}}},
      {.axes = {{"pp", 2}, {"tp", 2}}},
      {.axes = {{"fsdp", 2}, {"tp", 2}}},
      {.axes = {{"fsdp", 2}, {"cp", 2}}},
      {.axes = {{"pp", 2}, {"fsdp", 2}}},
      {.axes = {{"pp", 2}}, .schedule = "gpipe"},
      {.axes = {{"pp", 2}, {"dp", 2}}, .schedule = "zbv"},
      {.axes = {{"pp", 2}, {"tp", 2}}, .schedule = "interleaved"},
      {.axes = {{"dp", 2}, {"fsdp", 2}}},
      {.axes = {{"dp", 2}, {"cp", 2}}},
      {.axes = {{"tp", 2}, {"cp", 2}}},
      {.axes = {{"dp", 2}}, .offload = true},
      {.axes = {{"tp", 2}}, .offload = true},
      {.axes = {{"cp", 2}}, .offload = true},
      {.axes = {{"fsdp", 2}, {"tp", 2}}, .offload = true},
      {.axes = {{"pp", 2}}, .offload = true},
      {.axes = {{"pp", 2}}, .schedule = "zbv", .offload = true}};
  for (const auto& how : meshes) all.push_back({.how = how});
  const std::vector<std::vector<MeshAxis>> of_experts = {{{"dp", 2}},
                                                         {{"ep", 2}},
                                                         {{"fsdp", 2}},
                                                         {{"tp", 2}},
                                                         {{"ep", 2}, {"tp", 2}},
                                                         {{"ep", 2}, {"fsdp", 2}}};
  for (const auto& axes : of_experts)
    all.push_back({.how = {.axes = axes, .micro_batches = 1}, .has_experts = true});
  return all;
}

std::string text_of(const std::map<std::string, int>& counts) {
  std::string text;
  for (const auto& [cause, times] : counts)
    text += "; " + std::to_string(times) + " times " + cause;
  return text;
}

class HostSynchronizations : public AcceleratorTest, public testing::WithParamInterface<Case> {
 protected:
  // Expects that a step of the model waits for its device at most so many times.
  template <typename Make>
  static void expect_at_most(int waits, const Make& make) {
    constexpr int steps = 9, counted = 3;
    const auto& how = GetParam().how;
    run_ranks(test::ranks_of(how), [&](Group world, c10::Device device) {
      const int rank = world.rank();
      auto model = make();
      model->to(device);
      test::Composed composed(model, std::move(world), how);
      const auto optimizer = test::parity_optimizer(at::kFloat, composed.all().parameters());
      // Takes the step with the fewest waits among the last steps. Other steps may include the
      // check that plain tensors are equal on all ranks, which runs each time their number has
      // doubled.
      int fewest = std::numeric_limits<int>::max();
      std::string causes;
      for (int step = 0; step < steps; ++step) {
        const test::TokenBatch batch(step % 7, test::rows_of_step);
        const auto ids = batch.ids.to(device), targets = batch.targets.to(device);
        const auto before = Machine::get().counts(rank);
        composed.all().zero_grad();
        (void)composed.step(ids, targets);
        (void)composed.all().clip_grad_norm(1e-3);
        optimizer->step();
        auto after = Machine::get().counts(rank);
        const int all = after.all_synchronizations() - before.all_synchronizations();
        if (step < steps - counted || all >= fewest) continue;
        for (const auto& [cause, times] : before.synchronizations)
          after.synchronizations[cause] -= times;
        fewest = all;
        causes = text_of(after.synchronizations);
      }
      EXPECT_LE(fewest, waits) << "rank " << rank << causes;
    });
  }
};

constexpr int units_of_gpt = 5;  // four blocks, and the other parameters
constexpr int mixtures_of_moe = 2;

// The waits are those for the loss, which composed.step() returns as a number, and for the norm of
// all gradients. If the optimizer works in host memory, the gradients of each unit are waited for
// instead. A mixture waits for the numbers of tokens of its experts, which are sizes of messages
// and of products.
TEST_P(HostSynchronizations, OfAStepAreThoseOfTheLossAndOfTheNorm) {
  if (GetParam().has_experts)
    expect_at_most(2 + mixtures_of_moe, [] { return test::moe_of(1.5, at::kFloat); });
  else
    expect_at_most(GetParam().how.on_host ? 1 + units_of_gpt : 2,
                   [] { return models::Gpt(test::composed_gpt()); });
}

std::vector<Case> cases_that_do_not_block() {
  std::vector<Case> all;
  const std::vector<test::Composition> meshes = {
      {.axes = {{"dp", 2}}},
      {.axes = {{"fsdp", 2}}, .level = ShardLevel::optimizer},
      {.axes = {{"fsdp", 2}}, .level = ShardLevel::gradients},
      {.axes = {{"fsdp", 2}}},
      {.axes = {{"tp", 2}}},
      {.axes = {{"tp", 2}}, .sequence = true},
      {.axes = {{"tp", 2}}, .checkpoints = true},
      {.axes = {{"cp", 2}}},
      {.axes = {{"cp", 2}}, .context = ContextMethod::ulysses},
      {.axes = {{"dp", 2}, {"tp", 2}}},
      {.axes = {{"fsdp", 2}, {"tp", 2}}},
      {.axes = {{"pp", 2}}},
      {.axes = {{"pp", 4}}},
      {.axes = {{"pp", 2}}, .schedule = "interleaved"},
      {.axes = {{"pp", 2}}, .schedule = "zb-h1"},
      {.axes = {{"pp", 2}}, .schedule = "zbv"},
      {.axes = {{"pp", 2}}, .checkpoints = true},
      {.axes = {{"dp", 2}}, .offload = true},
      {.axes = {{"fsdp", 2}}, .offload = true},
      {.axes = {{"fsdp", 2}}, .on_host = true},
      {.axes = {{"pp", 2}, {"dp", 2}}},
      {.axes = {{"pp", 2}, {"tp", 2}}}};
  for (const auto& how : meshes) all.push_back({.how = how});
  const std::vector<std::vector<MeshAxis>> of_experts = {
      {{"dp", 2}}, {{"ep", 2}}, {{"ep", 2}, {"fsdp", 2}}, {{"ep", 2}, {"cp", 2}}};
  for (const auto& axes : of_experts)
    all.push_back({.how = {.axes = axes, .micro_batches = 1}, .has_experts = true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(OnDevices, HostSynchronizations,
                         testing::ValuesIn(cases_that_do_not_block()), name_of);

Traffic traffic_of_ulysses(Group world, c10::Device device) {
  auto model = models::Gpt(test::composed_gpt());
  model->to(device);
  test::Composed composed(model, std::move(world),
                          {.axes = {{"cp", 2}}, .context = ContextMethod::ulysses});
  const Mesh tensors = test::tensors_of(*model);
  reset_traffic(tensors);
  const test::TokenBatch batch(0, test::rows_of_step);
  (void)composed.step(batch.ids.to(device), batch.targets.to(device));
  return traffic(tensors);
}

class Ulysses : public AcceleratorTest {};

TEST_F(Ulysses, DividesHeadsAsOnTheCpu) {
  std::vector<Traffic> expected(2), found(2);
  run_as_threads(2, [&](const Group& world) {
    expected.at(world.rank()) = traffic_of_ulysses(world, c10::kCPU);
  });
  run_ranks(2, [&](const Group& world, c10::Device device) {
    found.at(world.rank()) = traffic_of_ulysses(world, device);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_GT(expected[rank].all_to_alls, 0);
    EXPECT_EQ(found[rank].all_to_alls, expected[rank].all_to_alls);
    EXPECT_EQ(found[rank].all_gathers, expected[rank].all_gathers);
  }
}

class LossOfAPipeline : public AcceleratorTest {
 protected:
  // Makes three steps and an evaluation; in step `other`, the loss has another dtype.
  static std::vector<std::string> errors(int other) {
    return errors_of_ranks(2, [&](const Group& world, c10::Device device) {
      auto model = models::Gpt(test::composed_gpt());
      model->to(device);
      test::Composed composed(model, world, {.axes = {{"pp", 2}}});
      const test::TokenBatch batch(0, test::rows_of_step);
      const Tensors ids{batch.ids.to(device)}, targets{batch.targets.to(device)};
      for (int step = 0; step < 3; ++step) {
        const auto dtype = step == other ? at::kDouble : at::kFloat;
        const at::Tensor loss =
            composed.all().step(ids, targets, [&](const Tensors& outputs, const Tensors& rows) {
              return token_loss(outputs, rows).to(dtype);
            });
        const at::Tensor evaluated = composed.all().evaluate(ids, targets);
        EXPECT_EQ(loss.device(), device);
        EXPECT_EQ(loss.scalar_type(), dtype);
        EXPECT_EQ(loss.dim(), 0);
        EXPECT_EQ(evaluated.device(), device);
        EXPECT_EQ(evaluated.item<float>(), loss.item<float>());
      }
    });
  }
};

TEST_F(LossOfAPipeline, IsOnTheDeviceOfEachRank) {
  EXPECT_EQ(errors(-1), std::vector<std::string>());
}

TEST_F(LossOfAPipeline, KeepsItsDtype) {
  const auto told = errors(2);
  ASSERT_EQ(told.size(), 2);
  for (const std::string& error : told)
    EXPECT_NE(
        error.find("loss: expected one of dtype Float on a device, as in earlier steps, found "
                   "Double on sim:1"),
        std::string::npos)
        << error;
}

INSTANTIATE_TEST_SUITE_P(OnDevices, Strategies, testing::ValuesIn(cases()), name_of);

}  // namespace
