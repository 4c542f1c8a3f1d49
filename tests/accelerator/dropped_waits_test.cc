// Programs on the simulated accelerator, with each wait of a rank's streams left out in turn: the
// numbers stay right, or the checker reports the wait.
#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"
#include "support/temporary_folder.h"
#include "support/watchdog.h"

#include <torch/optim/sgd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

constexpr int steps_with_a_gap = 2;
constexpr int seconds_with_a_gap = 60;  // if ranks wait until their deadlines

// The results and the errors of all ranks.
struct Outcome {
  std::vector<double> results = {};
  std::vector<std::string> errors = {};
  bool operator==(const Outcome&) const = default;
};

using ProgramOfRanks = std::function<Outcome()>;

struct Forgetful {
  std::string name;
  ProgramOfRanks program;
  int host = 1;  // whose waits are left out
};

void PrintTo(const Forgetful& what, std::ostream* out) { *out << what.name; }

// Runs a rank, whose results are the numbers that it adds.
using RankProgram = std::function<void(Group, c10::Device, std::vector<double>&)>;

Outcome outcome_of(int size, const RankProgram& rank) {
  std::vector<std::vector<double>> found(static_cast<std::size_t>(size));
  Outcome all;
  all.errors = errors_of_ranks(size, [&](const Group& group, c10::Device device) {
    rank(group, device, found[static_cast<std::size_t>(group.rank())]);
  });
  for (const auto& one : found) all.results.insert(all.results.end(), one.begin(), one.end());
  return all;
}

void add_sums(std::vector<double>& sums, const Handle& handle) {
  for (const auto& [name, tensor] : on_cpu(handle))
    sums.push_back(tensor.to(at::kDouble).sum().item<double>());
}

// The buckets are so small that each step has several.
Handle forgetful_handle(const Level& level, models::Mlp& model, const Group& group,
                        const ShardOptions& options) {
  constexpr std::int64_t bucket_bytes = 1000;
  if (!level)
    return DistributedDataParallel(
        model, group, {.bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes});
  return handle_of(level, model, group, options);
}

ProgramOfRanks data_parallel_program(const Level& level, const ShardOptions& options = {}) {
  return [=] {
    return outcome_of(ranks, [&](const Group& group, c10::Device device, auto& sums) {
      auto model = model_on(device);
      auto handle = forgetful_handle(level, model, group, options);
      torch::optim::SGD sgd(handle.parameters(), 0.1);
      for (int step = 0; step < steps_with_a_gap; ++step) {
        handle.zero_grad();
        loss_of(model, step * ranks + group.rank()).backward();
        sgd.step();
      }
      add_sums(sums, handle);
    });
  };
}

template <typename Model>
void train_composed(Model model, Group world, const test::Composition& how, c10::Device device,
                    std::vector<double>& results) {
  model->to(device);
  test::Composed composed(model, std::move(world), how);
  torch::optim::SGD sgd(composed.all().parameters(), 0.1);
  for (int step = 0; step < steps_with_a_gap; ++step) {
    const test::TokenBatch batch(step, 4);
    composed.all().zero_grad();
    results.push_back(composed.step(batch.ids.to(device), batch.targets.to(device)));
    sgd.step();
  }
  add_sums(results, composed.all());
}

ProgramOfRanks composed_program(const test::Composition& how) {
  return [=] {
    return outcome_of(test::ranks_of(how), [&](Group world, c10::Device device, auto& results) {
      const auto made = [&] {
        models::GptOptions options = least_gpt();
        options.layers = 2 * plan::stages_per_rank(how.schedule);
        return models::Gpt(options);
      };
      train_composed(test::made_alike(made, at::kFloat), std::move(world), how, device, results);
    });
  };
}

ProgramOfRanks experts_program(const test::Composition& how) {
  return [=] {
    return outcome_of(test::ranks_of(how), [&](Group world, c10::Device device, auto& results) {
      train_composed(test::moe_of(1.5, at::kFloat, 2), std::move(world), how, device, results);
    });
  };
}

// Saves after the first step, while the second step runs. The results are the saved parameters.
ProgramOfRanks saving_program(const Level& level) {
  return [=] {
    const test::TemporaryFolder out;
    return outcome_of(ranks, [&](const Group& group, c10::Device device, auto& sums) {
      checkpoint::AsyncSaver saver(group);
      auto model = model_on(device);
      auto handle = handle_of(level, model, group);
      torch::optim::SGD sgd(handle.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < steps_with_a_gap; ++step) {
        handle.zero_grad();
        loss_of(model, step * ranks + group.rank()).backward();
        sgd.step();
        if (step == 0) (void)saver.save(out.path(), handle, sgd, {.step = 1});
      }
      saver.wait();
      (void)checkpoint::load_latest(out.path(), handle, sgd);
      add_sums(sums, handle);
    });
  };
}

std::vector<Forgetful> forgetful_programs() {
  const auto tp = [](bool sequence, bool checkpoints) {
    return composed_program(
        {.axes = {{"tp", ranks}}, .sequence = sequence, .checkpoints = checkpoints});
  };
  const auto cp = [](ContextMethod method) {
    return composed_program({.axes = {{"cp", ranks}}, .context = method});
  };
  const auto pp = [](const std::string& schedule) {
    return composed_program({.axes = {{"pp", ranks}}, .schedule = schedule, .micro_batches = 2});
  };
  const auto both = [](const std::string& outer, const std::string& inner) {
    return composed_program({.axes = {{outer, ranks}, {inner, ranks}}, .micro_batches = 2});
  };
  return {{"Ddp", data_parallel_program(std::nullopt)},
          {"ShardOptimizer", data_parallel_program(ShardLevel::optimizer)},
          {"ShardGradients", data_parallel_program(ShardLevel::gradients)},
          {"ShardFull", data_parallel_program(ShardLevel::full)},
          {"ShardOnTheHost", data_parallel_program(ShardLevel::full, {.offload_to_host = true})},
          {"ShardCheckpointed", composed_program({.axes = {{"fsdp", ranks}}, .checkpoints = true})},
          {"Offloaded", composed_program({.axes = {{"dp", ranks}}, .offload = true})},
          {"ShardOffloaded", composed_program({.axes = {{"fsdp", ranks}}, .offload = true})},
          {"Tensor", tp(/*sequence=*/false, /*checkpoints=*/false)},
          {"TensorCheckpointed", tp(/*sequence=*/false, /*checkpoints=*/true)},
          {"Sequence", tp(/*sequence=*/true, /*checkpoints=*/false)},
          {"ContextRing", cp(ContextMethod::ring)},
          {"ContextUlysses", cp(ContextMethod::ulysses)},
          {"Experts", experts_program({.axes = {{"ep", ranks}}, .micro_batches = 1})},
          {"PipelineFirst", pp("1f1b"), 0},
          {"PipelineLast", pp("1f1b"), 1},
          {"PipelineInterleaved", pp("interleaved")},
          {"PipelineZeroBubble", pp("zb-h1")},
          {"PipelineZbv", pp("zbv"), 0},
          {"DdpOfTensor", both("dp", "tp")},
          {"ShardsOfTensor", both("fsdp", "tp")},
          {"ShardsOfContext", both("fsdp", "cp")},
          {"PipelinesOfDdp", both("pp", "dp")},
          {"PipelinesOfShards", both("pp", "fsdp")},
          {"PipelinesOfTensor", both("pp", "tp")},
          {"SavingDdp", saving_program(std::nullopt)},
          {"SavingShards", saving_program(ShardLevel::full)}};
}

class DroppedWaits : public AcceleratorTest, public testing::WithParamInterface<Forgetful> {};

TEST_P(DroppedWaits, AreReportedOrNotNeeded) {
  const Outcome expected = GetParam().program();
  ASSERT_EQ(expected.errors, std::vector<std::string>());
  (void)expect_dropped_waits_found(GetParam().host, [&] {
    test::allow_more_time(seconds_with_a_gap);
    return GetParam().program() == expected;
  });
}

INSTANTIATE_TEST_SUITE_P(OnDevices, DroppedWaits, testing::ValuesIn(forgetful_programs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
