// A model that deferred() created trains like a normal one and is never materialized as a whole.
#include <lockstep/parallel/sharded/deferred.h>

#include "dispatch/lazy_storage.h"
#include "parallel/sharded/memory_limit.h"
#include "parallel/sharded/support.h"
#include "support/temporary_folder.h"
#include "support/torch/allocations.h"

#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include <malloc.h>

namespace lockstep {
namespace {

using namespace test;

// Ranks are threads and share one generator.
std::mutex& turn() {
  static std::mutex mutex;
  return mutex;
}

// Returns the result of `make`, called with the generator seeded by `seed`, and the state of the
// generator afterwards.
template <typename Make>
auto seeded(std::uint64_t seed, Make&& make) {
  std::lock_guard lock(turn());
  torch::manual_seed(seed);
  auto made = make();
  return std::pair(made, at::detail::getDefaultCPUGenerator().get_state());
}

constexpr DeferredOptions everything{.smallest = 1};

std::vector<std::uint32_t> losses_of(const Problem& problem, torch::nn::Module& module,
                                     ShardedModule& sharded, int rank) {
  auto optimizer = adamw()(sharded.parameters());
  std::vector<std::uint32_t> losses;
  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    at::Tensor loss = problem.loss(module, step * 10 + rank);
    loss.backward();
    optimizer->step();
    losses.push_back(bits_of(loss));
  }
  return losses;
}

void expect_same_state(const ShardedModule& found, const ShardedModule& expected,
                       const std::string& where) {
  auto tensors = found.state_dict();
  for (const auto& [name, tensor] : expected.state_dict())
    EXPECT_TRUE(same_bits(tensors.at(name), tensor)) << where << ", " << name;
}

// Compares with a normal model with the same options and the same seed.
void expect_same_training(const Problem& problem, Group group, ShardOptions options) {
  options.units = problem.units;
  auto [ordinary, after_ordinary] = seeded(7, problem.make);
  auto [model, after_deferred] =
      seeded(group.is_root() ? 7 : 8, [&] { return deferred(problem.make, everything); });
  std::string where =
      problem.name + ", " + name_of(options.level) + ", " + name_of(options.storage);
  if (group.is_root()) EXPECT_TRUE(at::equal(after_ordinary, after_deferred)) << where;
  for (const at::Tensor& parameter : model->parameters())
    EXPECT_FALSE(dispatch::has_memory(parameter)) << where;
  auto expected = fully_shard(ordinary, group, options);
  auto sharded = fully_shard(model, group, options);
  EXPECT_EQ(sharded.units(), expected.units());
  expect_same_state(sharded, expected, where);
  EXPECT_EQ(losses_of(problem, *model, sharded, group.rank()),
            losses_of(problem, *ordinary, expected, group.rank()))
      << where;
  expect_same_state(sharded, expected, where + ", trained");
  for (const at::Tensor& buffer : model->buffers())
    EXPECT_FALSE(dispatch::is_lazy(buffer)) << where;
}

class DeferredModel : public testing::TestWithParam<int> {};

TEST_P(DeferredModel, TrainsAsTheOrdinaryOneAtEveryLevel) {
  for (const Problem& problem : problems())
    for (ShardLevel level : all_levels)
      run_as_threads(GetParam(),
                     [&](Group group) { expect_same_training(problem, group, {.level = level}); });
}

TEST_P(DeferredModel, TrainsAsTheOrdinaryOneInEveryStorage) {
  TemporaryFolder folder;
  const Problem problem = problems().back();
  for (const ShardOptions& options : {ShardOptions{.storage = ShardStorage::node_shared},
                                      ShardOptions{.compute_dtype = at::kBFloat16},
                                      ShardOptions{.offload = folder.path().string()}})
    run_as_threads(GetParam(), [&](Group group) { expect_same_training(problem, group, options); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeferredModel, testing::Values(1, 2, 3));

constexpr std::int64_t side = 512;
constexpr std::int64_t layer_bytes = side * side * 4;
constexpr int stack_height = 8;

torch::nn::Sequential stacked(int height = stack_height) {
  torch::nn::Sequential model;
  for (int i = 0; i < height; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(side, side).bias(false)));
  return model;
}

TEST(DeferredMemory, IsOneUnitAndTheShards) {
  for (int ranks : {1, 4})
    run_as_threads(ranks, [&](Group group) {
      Allocations counter;
      auto [model, state] = seeded(1, [] { return deferred([] { return stacked(); }); });
      EXPECT_LT(counter.peak(), 2 * layer_bytes);
      EXPECT_LT(counter.held(), layer_bytes);
      counter.reset_peak();
      auto sharded = fully_shard(model, group, {.units = {"*"}});
      std::int64_t shards = stack_height * layer_bytes / ranks;
      EXPECT_EQ(sharded.memory().shards, shards);
      // One unit, one more that is being broadcast, and the recorded construction.
      EXPECT_LT(counter.peak(), shards + 2 * layer_bytes + layer_bytes / 2);
      EXPECT_LT(counter.held(), shards + layer_bytes / 4);
    });
}

// If the model is created normally, the same counter sees the whole model.
TEST(DeferredMemory, IsTheWholeModelOtherwise) {
  Allocations counter;
  auto model = stacked();
  EXPECT_GE(counter.held(), stack_height * layer_bytes);
}

// The loss of one step of a model with 192 MiB of parameters.
float loss_of_large_model(bool is_deferred, const std::string& folder) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  auto make = [] { return stacked(192); };
  torch::nn::Sequential model = is_deferred ? deferred(make) : make();
  auto sharded = fully_shard(model, Group(), {.units = {"*"}, .offload = folder});
  ::mallopt(M_MMAP_THRESHOLD, 1 << 17);  // returns memory that the step frees to the system
  at::Tensor loss = at::zeros({}), input = values({2, side}, 1);
  for (const auto& layer : model->children())
    loss = loss + layer->as<torch::nn::LinearImpl>()->forward(input).square().mean();
  loss.backward();
  return loss.item<float>();
}

TEST(DeferredMemory, AModelThreeTimesTheMemoryLimitIsMade) {
  TemporaryFolder disk;
  auto loss_of = [&](bool is_deferred) {
    return [&, is_deferred] { return loss_of_large_model(is_deferred, disk.path()); };
  };
  expect_only_lean_fits(std::int64_t{64} << 20, loss_of(false), loss_of(true));
}

TEST(DeferredMemory, IsAskedForBeforeItIsTaken) {
  run_as_threads(2, [](Group group) {
    auto model = deferred([] {
      torch::nn::Sequential made(torch::nn::Linear(3, 2));
      made->register_parameter("huge", at::empty({std::int64_t{1} << 46}));
      return made;
    });
    at::Tensor huge = model->parameters().front();
    auto refused = [&] { auto sharded = fully_shard(model, group); };
    expect_words(message_of<BadInput>(refused), {"the ranks of one host (2)", "available"});
    EXPECT_FALSE(dispatch::has_memory(huge));
  });
}

TEST(Deferred, AModelThatWasUsedBeforeItIsDividedKeepsWhatWasWritten) {
  run_as_threads(2, [](Group group) {
    auto [model, state] =
        seeded(3, [] { return deferred([] { return torch::nn::Linear(6, 4); }, everything); });
    auto [plain, same] = seeded(3, [] { return torch::nn::Linear(6, 4); });
    at::Tensor input = values({2, 6}, 1);
    EXPECT_TRUE(same_bits(model->forward(input), plain->forward(input)));
    {
      at::NoGradGuard no_grad;
      for (auto* one : {&model, &plain}) (*one)->weight.mul_(3);
    }
    auto sharded = fully_shard(model, group);
    EXPECT_TRUE(same_bits(sharded.state_dict().at("weight"), plain->weight));
    EXPECT_TRUE(same_bits(sharded.state_dict().at("bias"), plain->bias));
  });
}

TEST(Deferred, ATiedWeightStaysOneTensor) {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      first = register_module("first", torch::nn::Linear(8, 8));
      second = register_module("second", torch::nn::Linear(8, 8));
      second->weight = first->weight;
      second->register_parameter("tied", first->weight);
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  run_as_threads(2, [](Group group) {
    auto model = seeded(4, [] {
                   return deferred([] { return std::make_shared<TiedImpl>(); }, everything);
                 }).first;
    auto plain = seeded(4, [] { return std::make_shared<TiedImpl>(); }).first;
    auto sharded = fully_shard(model, group, {.units = {"first", "second"}});
    EXPECT_EQ(sharded.named_parameters().size(), 4U);
    at::Tensor weight = sharded.state_dict().at("first.weight");
    EXPECT_TRUE(same_bits(weight, plain->first->weight));
    EXPECT_TRUE(same_bits(weight, sharded.state_dict().at("second.tied")));
  });
}

TEST(Deferred, RanksMustDeferTheSame) {
  run_as_threads(2, [](Group group) {
    auto make = [] { return torch::nn::Linear(6, 4); };
    torch::nn::Linear model = group.is_root() ? deferred(make, everything) : make();
    auto different = [&] { auto sharded = fully_shard(model, group); };
    expect_words(message_of<Mismatch>(different), {"rank 0 has deferred weight", "rank 1"});
    EXPECT_EQ(dispatch::is_lazy(model->weight), group.is_root());
  });
}

TEST(Deferred, MakeValuesGivesAnOrdinaryModule) {
  auto make = [] { return ConvNet(); };
  auto plain = seeded(6, make).first;
  auto model = seeded(6, [&] { return deferred(make, everything); }).first;
  at::Tensor view = model->conv->weight.detach().select(0, 1);
  make_values(*model);
  make_values(*model);
  auto expected = plain->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT_FALSE(dispatch::is_lazy(item.value())) << item.key();
    EXPECT_TRUE(same_bits(item.value(), expected[item.key()])) << item.key();
    EXPECT_EQ(item.value().requires_grad(), expected[item.key()].requires_grad()) << item.key();
  }
  for (const at::Tensor& buffer : model->buffers()) EXPECT_FALSE(dispatch::is_lazy(buffer));
  view.fill_(0);
  EXPECT_EQ(model->conv->weight[1].abs().sum().item<float>(), 0);
}

TEST(Deferred, SmallTensorsAreMadeAtOnce) {
  auto model = deferred([] { return torch::nn::Linear(200, 100); });
  EXPECT_FALSE(dispatch::has_memory(model->weight));
  EXPECT_FALSE(dispatch::is_lazy(model->bias));
}

}  // namespace
}  // namespace lockstep
