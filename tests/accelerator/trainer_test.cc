// The trainer on the simulated accelerator: with each strategy, the losses equal those of one
// process on the CPU, and no synchronisation fault is reported.
#include <lockstep/comm/local.h>

#include "dispatch/thread_generator.h"
#include "support/accelerator/expectations.h"
#include "support/accelerator/tensors.h"
#include "train/communication_ways.h"
#include "train/device.h"
#include "train/evaluator.h"
#include "train/messages.h"
#include "train/runs.h"
#include "train/tasks/language_models.h"

#include <array>
#include <cmath>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {
namespace {

using namespace test::accelerator;
using test::TemporaryFolder;
using Rows = std::vector<nlohmann::json>;

// Relative, of a loss.
constexpr double tolerance_of_float = 1e-4;
constexpr double tolerance_of_bfloat16 = 2e-2;
constexpr std::uint64_t seed_of_weights = 7;

// A task that checks the device of its tensors.
template <typename Known>
class Watched : public Known {
 public:
  explicit Watched(c10::DeviceType device) : device_(device) {}
  at::Tensor loss(const Batch& batch) override {
    EXPECT_EQ(batch.data.device().type(), device_);
    EXPECT_EQ(batch.target.device().type(), device_);
    EXPECT_EQ(this->model()->parameters().front().device().type(), device_);
    return Known::loss(batch);
  }

 private:
  c10::DeviceType device_;
};

using WatchedGpt = Watched<GptTask>;

// The ranks of run_ranks() are threads. Without generators of their own they would share the CPU's
// default generator.
Report train_rank(const RunSetup& setup, Group group, c10::DeviceType device) {
  const dispatch::ThreadGenerator generator(seed_of_weights);
  const auto run = [&](auto task) {
    setup.settle(task);
    return train(task, setup, std::move(group));
  };
  return setup.task == "moe" ? run(Watched<MoeTask>(device)) : run(WatchedGpt(device));
}

Rows trained_on_cpu(RunSetup setup) {
  setup.out += "-cpu";
  setup.device = "cpu";
  (void)train_rank(setup, Group(), c10::kCPU);
  return metrics_of(setup.out);
}

Rows trained_on_devices(const RunSetup& setup, int ranks) {
  run_ranks(ranks, [&](Group group, c10::Device) {
    (void)train_rank(setup, std::move(group), device_type);
  });
  return metrics_of(setup.out);
}

void expect_near(const Rows& found, const Rows& expected, double tolerance = tolerance_of_float) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    for (const char* name : {"loss", "val_loss"}) {
      ASSERT_EQ(found[i].contains(name), expected[i].contains(name));
      if (!found[i].contains(name)) continue;
      const double right = expected[i][name].get<double>();
      EXPECT_NEAR(found[i][name].get<double>(), right, tolerance * std::abs(right)) << name << i;
    }
}

// A run installs signal handlers. Runs in several threads end in any order, so the test restores
// the handlers.
class TrainerOnDevice : public AcceleratorTest {
 protected:
  void SetUp() override {
    AcceleratorTest::SetUp();
    dispatch::ThreadGenerator::prepare();
    for (std::size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], nullptr, &before_[i]);
  }
  void TearDown() override {
    for (std::size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], &before_[i], nullptr);
    AcceleratorTest::TearDown();
  }

  // Runs on the current device of each rank's thread.
  [[nodiscard]] RunSetup setup(const std::string& task = "gpt") const {
    RunSetup setup = tiny_language_model(task, folder_);
    setup.device = "sim";
    setup.steps = 4;
    setup.eval_every = 2;
    setup.save_every = 2;
    return setup;
  }

 private:
  static constexpr std::array handled{SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  std::array<struct sigaction, handled.size()> before_{};
  TemporaryFolder folder_;
};

struct Case {
  const char* name;
  const char* mesh = "";
  const char* shard = "auto";
  int ranks = 2;
  const char* task = "gpt";
  bool offload = false;  // activations
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class TrainerStrategies : public TrainerOnDevice, public testing::WithParamInterface<Case> {};

TEST_P(TrainerStrategies, HaveTheLossesOfOneProcessOnTheCpu) {
  const RunSetup run = setup(GetParam().task);
  const Rows expected = trained_on_cpu(run);
  for (std::uint64_t seed : {0, 1}) {
    Machine::get().set({.seed = seed, .lazy = seed % 2 == 0});
    RunSetup here = run;
    here.out += std::to_string(seed);
    set_option(here, "mesh", GetParam().mesh);
    set_option(here, "shard", GetParam().shard);
    here.activation_checkpoint_every = GetParam().offload ? 1 : 0;
    here.activation_offload = GetParam().offload;
    expect_near(trained_on_devices(here, GetParam().ranks), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    OnDevices, TrainerStrategies,
    testing::Values(Case{.name = "one", .ranks = 1}, Case{.name = "ddp"},
                    Case{.name = "fsdp", .mesh = "fsdp=2"},
                    Case{.name = "optimizer", .shard = "optimizer"},
                    Case{.name = "gradients", .shard = "gradients"},
                    Case{.name = "tp", .mesh = "tp=2"}, Case{.name = "pp", .mesh = "pp=2"},
                    Case{.name = "cp", .mesh = "cp=2"}, Case{.name = "offload", .offload = true},
                    Case{.name = "hybrid", .mesh = "dp=2,fsdp=2", .ranks = 4},
                    Case{.name = "ep", .mesh = "ep=2", .task = "moe"},
                    Case{.name = "ep_of_dp", .mesh = "dp=2,ep=2", .ranks = 4, .task = "moe"}),
    [](const auto& info) { return std::string(info.param.name); });

class TrainerCopies : public TrainerOnDevice, public testing::WithParamInterface<Way> {};

TEST_P(TrainerCopies, HaveTheLossesOfTheSameRanksOnTheCpu) {
  RunSetup run = setup();
  run.steps = 8;
  GetParam().change(run);
  RunSetup on_cpu = run;
  on_cpu.out += "-cpu";
  on_cpu.device = "cpu";
  run_as_threads(2, [&](Group group) { (void)train_rank(on_cpu, std::move(group), c10::kCPU); });
  expect_near(trained_on_devices(run, 2), metrics_of(on_cpu.out));
}

INSTANTIATE_TEST_SUITE_P(OnDevices, TrainerCopies, testing::ValuesIn(copies()),
                         [](const auto& info) { return info.param.name; });

// --strategy threads: one rank with several devices.
TEST_F(TrainerOnDevice, DeviceThreadsHaveTheLossesOfOneProcessOnTheCpu) {
  RunSetup run = setup();
  const Rows expected = trained_on_cpu(run);
  run.strategy = StrategyKind::threads;
  for (const int devices : {1, 2, 3}) {
    Machine::get().set({.seed = static_cast<std::uint64_t>(devices), .lazy = devices == 2});
    RunSetup here = run;
    here.out += std::to_string(devices);
    here.devices = devices;
    expect_near(trained_on_devices(here, 1), expected);
    EXPECT_GT(peak_memory(device(devices - 1))->allocated, 0);
  }
}

TEST_F(TrainerOnDevice, DeviceThreadsAreResumedToTheBit) {
  RunSetup run = setup();
  run.dropout = 0.2;
  run.strategy = StrategyKind::threads;
  run.devices = 2;
  (void)trained_on_devices(run, 1);
  const RunSetup again = cut_at(run, 2);
  (void)trained_on_devices(again, 1);
  EXPECT_EQ(distance(run.out, again.out), 0);
}

TEST_F(TrainerOnDevice, MoreDeviceThreadsThanDevicesAreRefused) {
  RunSetup run = setup();
  run.strategy = StrategyKind::threads;
  run.devices = 5;
  const auto refusal = [&] {
    return errors_of_ranks(1, [&](const Group& group,
                                  c10::Device) { (void)train_rank(run, group, device_type); })
        .front();
  };
  EXPECT_NE(
      refusal().find("--strategy threads --devices 5: expected at most the 4 devices that this "
                     "process may use; --device cpu computes on groups of cores"),
      std::string::npos);
  run.device = "sim:0";
  run.devices = 2;
  EXPECT_NE(refusal().find("expected at most the 1 device"), std::string::npos);
}

// Dropout draws from the device's generator, whose state is not in checkpoints.
TEST_F(TrainerOnDevice, AResumedRunHasTheBitsOfOneWithoutInterruption) {
  RunSetup run = setup();
  run.dropout = 0.2;
  (void)trained_on_devices(run, 1);
  const RunSetup again = cut_at(run, 2);
  (void)trained_on_devices(again, 1);
  EXPECT_EQ(distance(run.out, again.out), 0);
  expect_same_rows(run, again);
}

// Each rank's copy and the state of its optimizer are in own.safetensors.
TEST_F(TrainerOnDevice, CopiesOfRanksAreResumedToTheBit) {
  RunSetup run = setup();
  run.local_sgd.period = 3;
  (void)trained_on_devices(run, 2);
  const RunSetup again = cut_at(run, 2);
  (void)trained_on_devices(again, 2);
  EXPECT_EQ(distance(run.out, again.out), 0);
}

TEST_F(TrainerOnDevice, CheckpointsAreWrittenWhileTrainingContinues) {
  RunSetup run = setup();
  (void)trained_on_devices(run, 1);
  RunSetup async = run;
  async.out += "-async";
  async.async_save = true;
  (void)trained_on_devices(async, 1);
  EXPECT_EQ(distance(run.out, async.out), 0);
  const std::filesystem::path folder = "step-00000002";
  EXPECT_EQ(distance(run.out / folder, async.out / folder), 0);
}

TEST_F(TrainerOnDevice, AModelIsEvaluatedAndSampledAsOnTheCpu) {
  RunSetup run = setup();
  run.sample_every = 4;
  run.sample = 10;
  const Rows on_cpu = trained_on_cpu(run);
  const Rows rows = trained_on_devices(run, 1);
  EXPECT_EQ(rows.back()["sample"], on_cpu.back()["sample"]);
  const auto on_host = evaluate_saved({.run = run.out}, Group());
  const auto found = evaluate_saved({.run = run.out, .device = device(0)}, Group());
  EXPECT_NEAR(found.val_loss, on_host.val_loss, tolerance_of_float);
}

TEST_F(TrainerOnDevice, AModelOfAMeshIsEvaluatedOnSeveralDevices) {
  for (const char* mesh : {"tp=2", "pp=2"}) {
    RunSetup run = setup();
    run.out += mesh;
    set_option(run, "mesh", mesh);
    (void)trained_on_devices(run, 2);
    const auto on_host = evaluate_saved({.run = run.out}, Group());
    run_ranks(2, [&](Group group, c10::Device device) {
      const dispatch::ThreadGenerator generator(seed_of_weights);
      const auto found = evaluate_saved({.run = run.out, .device = device}, std::move(group));
      EXPECT_NEAR(found.val_loss, on_host.val_loss, tolerance_of_float) << mesh;
    });
  }
}

TEST_F(TrainerOnDevice, ComputesUnderAutocast) {
  RunSetup run = setup();
  const Rows expected = trained_on_cpu(run);
  set_option(run, "precision", "bf16");
  for (const char* mesh : {"dp=2", "tp=2"}) {
    RunSetup here = run;
    here.out += mesh;
    set_option(here, "mesh", mesh);
    const Rows found = trained_on_devices(here, 2);
    expect_near(found, expected, tolerance_of_bfloat16);
    EXPECT_NE(found.back()["loss"], expected.back()["loss"]);
  }
}

// Batches are copied while the device computes the step.
TEST_F(TrainerOnDevice, BatchesAreCopiedWithoutBlocking) {
  RunSetup run = setup();
  run.eval_every = run.save_every = 0;
  run.log_every = 100;
  Machine::get().reset_counts();
  (void)trained_on_devices(run, 1);
  const int copies = Machine::get().counts(0).synchronizations["copy_ (to device)"];
  run.out += "-longer";
  run.steps += 8;
  Machine::get().reset_counts();
  (void)trained_on_devices(run, 1);
  EXPECT_EQ(Machine::get().counts(0).synchronizations["copy_ (to device)"], copies);
}

TEST_F(TrainerOnDevice, RowsHaveTheMemoryOfTheDevice) {
  const Rows rows = trained_on_devices(setup(), 2);
  for (const auto& row : rows) {
    EXPECT_GE(row["device_allocated_bytes"], row["model_bytes"]);
    EXPECT_GE(row["device_reserved_bytes"], row["device_allocated_bytes"]);
  }
}

TEST_F(TrainerOnDevice, ADeferredModelTrainsAsOneWithMemory) {
  RunSetup run = setup();
  run.width = 128;  // large enough to be deferred
  const Rows expected = trained_on_cpu(run);
  run.deferred_init = true;
  for (const char* mesh : {"fsdp=2", "fsdp=2,tp=2"}) {
    RunSetup here = run;
    here.out += mesh;
    set_option(here, "mesh", mesh);
    expect_near(trained_on_devices(here, mesh[6] == '\0' ? 2 : 4), expected);
    expect_no_faults();
  }
}

// A gpt with a buffer that is a view of a parameter.
class GptWithAView : public WatchedGpt {
 public:
  using WatchedGpt::WatchedGpt;
  std::shared_ptr<torch::nn::Module> make_model() override {
    auto module = WatchedGpt::make_model();
    weight = module->parameters().front();
    view = module->register_buffer("view", weight.detach().flatten().narrow(0, 4, 4));
    return module;
  }

  at::Tensor weight, view;
};

TEST_F(TrainerOnDevice, AViewOfAParameterIsAViewOnTheDevice) {
  const RunSetup run = setup();
  run_ranks(1, [&](Group group, c10::Device) {
    const dispatch::ThreadGenerator generator(seed_of_weights);
    GptWithAView task(device_type);
    run.settle(task);
    (void)train(task, run, std::move(group));
    EXPECT_TRUE(task.view.is_alias_of(task.weight));
    EXPECT_TRUE(task.view.cpu().equal(task.weight.detach().cpu().flatten().narrow(0, 4, 4)));
  });
}

TEST_F(TrainerOnDevice, NamesADeviceThatIsNotThere) {
  RunSetup run = setup();
  for (const auto& [device, message] :
       {std::pair("cuda", "--device: expected cpu, sim or sim:0 to sim:3; found 'cuda'"),
        {"sim:4", "--device: expected cpu, sim or sim:0 to sim:3; found 'sim:4'"}}) {
    run.device = device;
    EXPECT_EQ(test::message_of([&] { check_run(run, 1); }), message);
  }
  run.device = "sim:1";
  check_run(run, 1);
}

}  // namespace
}  // namespace lockstep::train
