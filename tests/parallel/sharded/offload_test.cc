// Shards and optimizer state in mapped files: the same training with less memory.
#include "parallel/sharded/memory_limit.h"
#include "parallel/sharded/pair.h"
#include "support/temporary_folder.h"

#include <lockstep/optim/adamw.h>
#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <malloc.h>
#include <sys/resource.h>
#include <csignal>
#include <filesystem>

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

class OffloadAt : public OnEveryLevel {};

// The losses of some steps and the final model.
struct Trained {
  std::vector<std::uint32_t> losses;
  std::map<std::string, at::Tensor> model;
  std::int64_t offloaded = 0, kept = 0, elements = 0;  // elements in this rank's slices
};

Trained train(const Problem& problem, Group group, ShardOptions options,
              at::ScalarType dtype = at::kFloat) {
  auto model = problem.make();
  fill_parameters(*model, 5);
  model->to(dtype);
  options.units = problem.units;
  ShardedModule sharded = fully_shard(model, group, options);
  optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.01),
                     {.memory = sharded.state_memory()});
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    sharded.zero_grad();
    at::Tensor loss = problem.loss(*model, step * group.size() + group.rank());
    loss.backward();
    adamw.step();
    trained.losses.push_back(bits_of(loss));
  }
  sharded.zero_grad();
  trained.offloaded = sharded.memory().offloaded;
  trained.kept = sharded.memory().shards;
  for (const at::Tensor& slice : sharded.parameters()) trained.elements += slice.numel();
  trained.model = sharded.state_dict();
  return trained;
}

auto loss_in_bfloat16() {
  return [](torch::nn::Module& model, std::int64_t n) {
    return image_loss(
        model.as<models::MlpImpl>()->forward(values({5, 36}, n).to(at::kBFloat16)).to(at::kFloat));
  };
}

TEST_P(OffloadAt, TrainsToTheSameBitsAndLeavesNothing) {
  TemporaryFolder folder;
  for (int ranks : {1, 3}) {
    for (const Problem& problem : problems()) {
      run_as_threads(ranks, [&](Group group) {
        Trained expected = train(problem, group, {.level = GetParam()});
        Trained found =
            train(problem, group, {.level = GetParam(), .offload = folder.path().string()});
        EXPECT_EQ(expected.losses, found.losses) << problem.name;
        for (const auto& [name, tensor] : expected.model)
          EXPECT_TRUE(same_bits(tensor, found.model.at(name))) << problem.name << ", " << name;
        EXPECT_EQ(expected.offloaded, 0);
        EXPECT_GT(found.offloaded, 0);
        EXPECT_EQ(found.kept, 0);
      });
      EXPECT_TRUE(fs::is_empty(folder.path()));
    }
  }
}

TEST_P(OffloadAt, KeepsShardsInMoreDigitsThanAreComputedWith) {
  TemporaryFolder folder;
  Problem mlp = problems().front();
  ShardOptions options{.level = GetParam(), .compute_dtype = at::kBFloat16};
  mlp.loss = loss_in_bfloat16();
  run_as_threads(2, [&](Group group) {
    Trained expected = train(mlp, group, options);
    ShardOptions to_disk = options;
    to_disk.offload = folder.path().string();
    Trained found = train(mlp, group, to_disk);
    EXPECT_EQ(expected.losses, found.losses);
    for (const auto& [name, tensor] : expected.model)
      EXPECT_TRUE(same_bits(tensor, found.model.at(name))) << name;
  });
}

TEST_P(OffloadAt, KeepsTheOptimizersMastersOfSixteenBits) {
  TemporaryFolder folder;
  Problem mlp = problems().front();
  mlp.loss = loss_in_bfloat16();
  run_as_threads(2, [&](Group group) {
    Trained expected = train(mlp, group, {.level = GetParam()}, at::kBFloat16);
    Trained found =
        train(mlp, group, {.level = GetParam(), .offload = folder.path().string()}, at::kBFloat16);
    EXPECT_EQ(expected.losses, found.losses);
    for (const auto& [name, tensor] : expected.model)
      EXPECT_TRUE(same_bits(tensor, found.model.at(name))) << name;
    EXPECT_GE(found.offloaded, 12 * found.elements);  // the master and two moments
  });
}

TEST_P(OffloadAt, WritesInPlaceLoadingAndTorchsOptimizerWork) {
  TemporaryFolder folder;
  ShardOptions options{.offload = folder.path().string()};
  run(
      [&](Pair& pair, Group) {
        {
          torch::NoGradGuard no_grad;
          for (int i : {0, 1}) {
            pair.layer(i).weight.mul_(0.5);
            pair.plain_layer(i).weight.mul_(0.5);
          }
        }
        pair.use();
        torch::optim::AdamW ours(pair.sharded->parameters()), plain(pair.plain->parameters());
        std::int64_t before = pair.sharded->memory().offloaded;
        optim::move_state(ours, pair.sharded->state_memory());
        std::int64_t elements = 0;
        for (const at::Tensor& slice : pair.sharded->parameters()) elements += slice.numel();
        EXPECT_GE(pair.sharded->memory().offloaded - before, 8 * elements);
        for (auto* net : {&pair.model, &pair.plain})
          (*net)->forward(Pair::input()).square().sum().backward();
        ours.step();
        plain.step();
        for (int i : {0, 1}) {
          torch::NoGradGuard no_grad;
          EXPECT_TRUE(at::allclose(pair.layer(i).weight.clone(), pair.plain_layer(i).weight));
        }
        std::map<std::string, at::Tensor> values;
        for (const auto& item : pair.plain->named_parameters())
          values[item.key()] = item.value().detach().clone();
        pair.sharded->load_state_dict(values);
        pair.use();
      },
      options);
}

TEST_P(OffloadAt, AGradientThatIsHeldKeepsItsValues) {
  TemporaryFolder folder;
  run([](Pair& pair, Group) { expect_held_gradients_stay(pair); },
      {.offload = folder.path().string()});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(Levels, OffloadAt, every_level(), name_of_level);

TEST(Offload, AFolderThatIsNotThereIsNamedAndNothingIsTaken) {
  TemporaryFolder folder;
  run_as_threads(2, [&](Group group) {
    torch::nn::Linear model(4, 6);
    auto before = model->weight.detach().clone();
    std::string missing = (folder / "missing").string();
    std::string text = message_of<Error>([&] {
      ShardOptions options{.offload = group.is_root() ? folder.path().string() : missing};
      (void)fully_shard(model, group, options);
    });
    expect_contains(text, group.is_root() ? "1 of 2 ranks cannot put their shards" : missing);
    EXPECT_TRUE(model->weight.equal(before));
  });
}

// Limits files to 1 KB, like a full disk.
class SmallFiles {
 public:
  SmallFiles() : old_signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    rlimit limit{.rlim_cur = 1024, .rlim_max = old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_signal_);
  }

 private:
  rlimit old_limit_{};
  void (*old_signal_)(int);
};

TEST(Offload, AFullDiskIsOneErrorBeforeAnythingIsTaken) {
  TemporaryFolder folder;
  SmallFiles small;
  run_as_threads(2, [&](Group group) {
    torch::nn::Linear model(100, 60);
    std::string text = message_of<Error>(
        [&] { (void)fully_shard(model, group, {.offload = folder.path().string()}); });
    expect_contains(text, "reserving ");
    expect_contains(text, folder.path().string());
    EXPECT_TRUE(model->forward(at::ones({1, 100})).isfinite().all().item<bool>());
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Offload, AFullDiskInAStepIsOneErrorAndChangesNothing) {
  TemporaryFolder folder;
  torch::nn::Linear model(100, 60);
  ShardedModule sharded =
      fully_shard(model, Group(), {.level = ShardLevel::optimizer, .offload = folder.path()});
  optim::AdamW adamw(sharded.parameters(), torch::optim::AdamWOptions(0.1),
                     {.memory = sharded.state_memory()});
  model->forward(at::ones({1, 100})).sum().backward();
  auto before = sharded.state_dict();
  {
    SmallFiles small;
    expect_contains(message_of<Error>([&] { adamw.step(); }), "reserving 24240 bytes");
  }
  for (const auto& [name, tensor] : sharded.state_dict())
    EXPECT_TRUE(tensor.equal(before.at(name))) << name;
}

// 48 units of 1 MiB: parameters, gradients and Adam's two moments are 192 MiB. The model is
// deferred, so that it is never in memory as a whole.
constexpr int layers = 48;
constexpr std::int64_t width = 512;
constexpr std::int64_t limit_bytes = std::int64_t{64} << 20;

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < layers; ++i)
      all->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    register_module("all", all);
  }
  torch::nn::Sequential all;
};

std::unique_ptr<torch::optim::Optimizer> made_by(bool torchs, const ShardedModule& sharded) {
  auto options = torch::optim::AdamWOptions(0.001);
  if (!torchs)
    return std::make_unique<optim::AdamW>(sharded.parameters(), options,
                                          optim::UpdateOptions{.memory = sharded.state_memory()});
  auto adamw = std::make_unique<torch::optim::AdamW>(sharded.parameters(), options);
  optim::move_state(*adamw, sharded.state_memory());
  return adamw;
}

float train_deep(bool torchs, const std::string& folder) {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 18);  // returns freed memory to the system
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto model = deferred([] { return std::make_shared<DeepImpl>(); });
  ShardedModule sharded = fully_shard(model, Group(), {.units = {"all.*"}, .offload = folder});
  auto adamw = made_by(torchs, sharded);
  at::Tensor loss;
  for (int step = 0; step < 2; ++step) {
    sharded.zero_grad();
    loss = model->all->forward(values({2, width}, step)).square().mean();
    loss.backward();
    adamw->step();
  }
  return loss.item<float>();
}

class OffloadUnderLimit : public testing::TestWithParam<bool> {};

TEST_P(OffloadUnderLimit, AModelThreeTimesTheMemoryLimitTrains) {
  TemporaryFolder disk;
  auto loss_with = [](std::string folder) {
    return [folder] { return train_deep(GetParam(), folder); };
  };
  expect_only_lean_fits(limit_bytes, loss_with(""), loss_with(disk.path().string()));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OffloadUnderLimit, testing::Bool(),
                         [](const auto& info) { return info.param ? "Torchs" : "Ours"; });

}  // namespace
}  // namespace lockstep::test
