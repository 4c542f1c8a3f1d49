// Checkpoints of models on the simulated accelerator: the files that the CPU writes, read back onto
// devices, also on another mesh and when saved during training.
#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/local.h>

#include "accelerator/small_training.h"
#include "support/accelerator/expectations.h"
#include "support/flush_hook.h"
#include "support/temporary_folder.h"

#include <ATen/ops/arange.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace lockstep;
using namespace lockstep::test::accelerator;

namespace {

namespace fs = std::filesystem;

constexpr int steps_at_once = 2;

// A model on a device, its handle and its optimizer.
struct Trained {
  Trained(const Level& level, const Group& group, c10::Device device)
      : rank(group.rank()), model(model_on(device)) {
    handle = handle_of(level, model, group);
    adamw = std::make_unique<torch::optim::AdamW>(handle.parameters(),
                                                  torch::optim::AdamWOptions(0.01));
  }

  void train() {
    for (int i = 0; i < steps_at_once; ++i) {
      handle.zero_grad();
      loss_of(model, ranks * step++ + rank).backward();
      adamw->step();
    }
  }
  void load(const fs::path& out) {
    step = static_cast<int>(checkpoint::load_latest(out, handle, *adamw)->step);
  }
  fs::path save(const fs::path& out) const {
    return checkpoint::save(out, handle, *adamw, {.step = step});
  }
  void save_by(checkpoint::AsyncSaver& saver, const fs::path& out) const {
    (void)saver.save(out, handle, *adamw, {.step = step});
  }

  int rank;
  models::Mlp model;
  Handle handle;
  std::unique_ptr<torch::optim::AdamW> adamw;
  int step = 0;
};

// Trains and saves, loads into new objects, trains and saves again.
void save_twice(const Level& level, Group group, c10::Device device, const fs::path& out) {
  {
    Trained first(level, group, device);
    first.train();
    (void)first.save(out);
  }
  Trained second(level, group, device);
  second.load(out);
  for (const auto& [key, state] : second.adamw->state()) {
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*state);
    EXPECT_EQ(moments.exp_avg().device(), device);
  }
  second.train();
  (void)second.save(out);
}

std::string bytes_of(const fs::path& file) {
  std::ifstream opened(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(opened), {}};
}

// All values, bit by bit. The states of random generators are those of the process.
void expect_same_values(const fs::path& found, const fs::path& expected) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(bytes_of(found / name) == bytes_of(expected / name)) << found / name;
}

class Checkpoints : public AcceleratorTest, public testing::WithParamInterface<Level> {};

TEST_P(Checkpoints, AreTheFilesOfTheCpu) {
  const test::TemporaryFolder of_cpu;
  run_as_threads(
      ranks, [&](const Group& group) { save_twice(GetParam(), group, c10::kCPU, of_cpu.path()); });
  const test::TemporaryFolder out;
  run_ranks(ranks, [&](const Group& group, c10::Device device) {
    save_twice(GetParam(), group, device, out.path());
  });
  for (const char* name : {"step-00000002", "step-00000004"})
    expect_same_values(out / name, of_cpu / name);
}

// A disk that writes nothing until it is opened.
class SlowDisk {
 public:
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
  test::FlushHook hook_{[disk = opened_.get_future().share()](const std::string&) {
    disk.wait();
    return 0;
  }};
};

TEST_P(Checkpoints, AreSavedWhileTrainingContinues) {
  const test::TemporaryFolder of_cpu, out;
  run_as_threads(
      ranks, [&](const Group& group) { save_twice(GetParam(), group, c10::kCPU, of_cpu.path()); });
  std::optional<SlowDisk> disk(std::in_place);
  run_ranks(ranks, [&](Group group, c10::Device device) {
    checkpoint::AsyncSaver saver(group);
    Trained trained(GetParam(), group, device);
    trained.train();
    trained.save_by(saver, out.path());
    trained.train();
    EXPECT_TRUE(saver.is_writing());
    group.barrier().wait();
    if (group.is_root()) disk->open();
    saver.wait();
    (void)trained.save(out.path());
  });
  for (const char* name : {"step-00000002", "step-00000004"})
    expect_same_values(out / name, of_cpu / name);
}

INSTANTIATE_TEST_SUITE_P(OnDevices, Checkpoints, testing::ValuesIn(all_levels), name_of_level);

// Trains two steps and saves, or loads and trains the next two steps. Returns the losses.
template <typename Make>
std::vector<double> losses_on_mesh(const test::Composition& how, const Make& make,
                                   const fs::path& folder, bool goes_on) {
  std::vector<double> losses;
  run_ranks(test::ranks_of(how), [&](Group world, c10::Device device) {
    const bool is_first = world.rank() == 0;
    auto model = make();
    model->to(device);
    test::Composed composed(model, std::move(world), how);
    const auto optimizer = test::parity_optimizer(at::kDouble, composed.all().parameters());
    const int first = goes_on ? steps_at_once : 0;
    if (goes_on)
      EXPECT_EQ(checkpoint::load_latest(folder, composed.all(), *optimizer)->step, first);
    for (int step = first; step < first + steps_at_once; ++step) {
      const test::TokenBatch batch(step, test::rows_of_step);
      composed.all().zero_grad();
      const double loss = composed.step(batch.ids.to(device), batch.targets.to(device));
      optimizer->step();
      if (is_first) losses.push_back(loss);
    }
    if (!goes_on)
      (void)checkpoint::save(folder, composed.all(), *optimizer, {.step = steps_at_once});
  });
  return losses;
}

// Saves on each mesh, and goes on with the next one.
template <typename Make>
void expect_meshes_go_on(const std::vector<test::Composition>& all, const Make& make) {
  const auto expected = test::losses_of_one(make(), at::kDouble, 2 * steps_at_once);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const test::Composition &from = all[i], &to = all[(i + 1) % all.size()];
    const test::TemporaryFolder folder;
    auto losses = losses_on_mesh(from, make, folder.path(), /*goes_on=*/false);
    const auto later = losses_on_mesh(to, make, folder.path(), /*goes_on=*/true);
    losses.insert(losses.end(), later.begin(), later.end());
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t step = 0; step < losses.size(); ++step)
      EXPECT_NEAR(losses[step], expected[step], 1e-10 * std::abs(expected[step]))
          << test::text_of(from) << " to " << test::text_of(to) << ", step " << step;
  }
}

class CheckpointMeshes : public AcceleratorTest {};

TEST_F(CheckpointMeshes, GoOnOnAnotherMesh) {
  expect_meshes_go_on(
      {{.axes = {{"tp", 2}}},
       {.axes = {{"fsdp", 2}, {"tp", 2}}},
       {.axes = {{"pp", 2}}},
       {.axes = {{"cp", 2}}},
       {.axes = {{"fsdp", 2}, {"cp", 2}}},
       {.axes = {{"fsdp", 4}}}},
      [] { return test::made_alike([] { return models::Gpt(least_gpt()); }, at::kDouble); });
}

TEST_F(CheckpointMeshes, OfExpertsGoOnOnAnotherMesh) {
  std::vector<test::Composition> meshes;
  const std::vector<std::vector<MeshAxis>> axes = {
      {{"ep", 2}}, {{"dp", 2}, {"ep", 2}}, {{"fsdp", 2}}, {{"ep", 2}, {"fsdp", 2}}, {{"ep", 4}}};
  for (const auto& one : axes) meshes.push_back({.axes = one, .micro_batches = 1});
  expect_meshes_go_on(meshes, [] { return test::moe_of(1.5, at::kDouble); });
}

class AsyncSaves : public AcceleratorTest {};

TEST_F(AsyncSaves, OfTwoSaversAreWrittenAtOnce) {
  const test::TemporaryFolder of_cpu, out;
  const std::vector<Level> levels = {std::nullopt, ShardLevel::full};
  const auto folder_of = [](const Level& level) { return level ? "full" : "ddp"; };
  run_as_threads(ranks, [&](const Group& group) {
    for (const Level& level : levels)
      save_twice(level, group, c10::kCPU, of_cpu / folder_of(level));
  });
  std::optional<SlowDisk> disk(std::in_place);
  run_ranks(ranks, [&](Group group, c10::Device device) {
    std::vector<std::unique_ptr<Trained>> all;
    std::vector<std::unique_ptr<checkpoint::AsyncSaver>> savers;
    for (const Level& level : levels) {
      all.push_back(std::make_unique<Trained>(level, group, device));
      savers.push_back(std::make_unique<checkpoint::AsyncSaver>(group));
      all.back()->train();
      all.back()->save_by(*savers.back(), out / folder_of(level));
    }
    for (const auto& trained : all) trained->train();
    for (const auto& saver : savers) EXPECT_TRUE(saver->is_writing());
    group.barrier().wait();
    if (group.is_root()) disk->open();
    for (std::size_t i = 0; i < all.size(); ++i) {
      savers[i]->wait();
      (void)all[i]->save(out / folder_of(levels[i]));
    }
  });
  for (const Level& level : levels)
    for (const char* name : {"step-00000002", "step-00000004"})
      expect_same_values(out / folder_of(level) / name, of_cpu / folder_of(level) / name);
}

TEST_F(AsyncSaves, WaitForManyTensorsAtOnce) {
  const test::TemporaryFolder out;
  run_ranks(ranks, [&](Group group, c10::Device device) {
    checkpoint::AsyncSaver saver(group);
    Trained trained(std::nullopt, group, device);
    trained.train();
    const auto waits = [&] {
      return Machine::get().counts(group.rank()).synchronizations["copy_ (to host)"];
    };
    const int before = waits();
    trained.save_by(saver, out.path());
    EXPECT_EQ(waits(), before);
    saver.wait();
  });
}

// The copies fill each of the two buffers of pinned memory more than once.
TEST_F(AsyncSaves, OfALargeTensorHaveItsValues) {
  const test::TemporaryFolder out;
  constexpr std::int64_t rows = 5000, columns = 6400;
  const at::Tensor wanted =
      at::arange(rows * columns, at::kInt).view(at::kFloat).view({rows, columns});
  run_ranks(1, [&](Group group, c10::Device device) {
    torch::nn::Sequential net(torch::nn::Linear(columns, rows));
    net->ptr<torch::nn::LinearImpl>(0)->weight.set_data(wanted);
    net->to(device);
    checkpoint::AsyncSaver saver(group);
    const DistributedDataParallel ddp(net, group);
    torch::optim::SGD sgd(ddp.parameters(), 0.1);
    (void)saver.save(out.path(), ddp, sgd, {.step = 1});
    for (const at::Tensor& parameter : ddp.parameters()) parameter.detach().zero_();
    saver.wait();
  });
  const auto saved = checkpoint::read_safetensors(out / "step-00000001" / "model.safetensors");
  EXPECT_TRUE(saved.tensors.at("0.weight").view(at::kInt).equal(wanted.view(at::kInt)));
}

TEST_F(AsyncSaves, ThatFailAreReportedOnAllRanksAndTheNextOneSucceeds) {
  const test::TemporaryFolder out;
  std::atomic<bool> is_broken{true};
  const test::FlushHook disk([&](const std::string&) { return is_broken ? EIO : 0; });
  run_ranks(ranks, [&](Group group, c10::Device device) {
    checkpoint::AsyncSaver saver(group);
    Trained trained(ShardLevel::full, group, device);
    trained.train();
    trained.save_by(saver, out.path());
    trained.train();
    test::expect_contains(test::message_of<CollectiveFailure>([&] { saver.wait(); }),
                          "Input/output error");
    group.barrier().wait();
    is_broken = false;
    group.barrier().wait();
    trained.save_by(saver, out.path());
    saver.wait();
    Trained next(ShardLevel::full, group, device);
    next.load(out.path());
    EXPECT_EQ(next.step, 2 * steps_at_once);
  });
}

}  // namespace
