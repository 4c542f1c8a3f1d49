#include "parallel/sharded/checks.h"

#include "parallel/sharded/support.h"

#include "dispatch/lazy_storage.h"

namespace lockstep {
namespace {

using namespace test;
using sharded::MemoryNeed;

TEST(MemoryCheck, AddsUpTheRanksOfOnePlace) {
  auto shortage = [](std::vector<MemoryNeed> needs) { return sharded::first_shortage(needs); };
  EXPECT_FALSE(shortage({{1, 40, 100}, {1, 60, 100}, {2, 90, 100}}));
  auto found = shortage({{2, 90, 100}, {1, 41, 100}, {1, 60, 100}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->place, 1);
  EXPECT_EQ(found->needed, 101);
  EXPECT_TRUE(shortage({{1, 40, 100}, {1, 30, 60}}));
  EXPECT_FALSE(shortage({}));
}

TEST(MemoryCheck, CountsWhatEachLevelKeeps) {
  std::vector<NamedParameter> parameters = {{"a", at::zeros({600}).requires_grad_(), {}},
                                            {"b", at::zeros({1200}).requires_grad_(), {}}};
  std::vector<layout::PlannedUnit> plan = {{"a", -1, {0}}, {"b", -1, {1}}};
  auto needed = [&](ShardOptions options) {
    return sharded::bytes_needed(parameters, plan, 3, options);
  };
  // 8, 4 + 4/3 and 8/3 bytes per parameter, minus the 4 that exist already, plus units in flight.
  EXPECT_EQ(needed({.level = ShardLevel::optimizer}), 1800 * 4);
  EXPECT_EQ(needed({.level = ShardLevel::gradients}), 1800 * 4 / 3 + 4800);
  EXPECT_EQ(needed({.level = ShardLevel::full}), 1800 * 8 / 3 - 1800 * 4 + 2 * 4800);
  EXPECT_EQ(needed({.storage = ShardStorage::node_shared}), 1800 * 8 / 3 - 1800 * 4 + 4800);
  for (auto& parameter : parameters) parameter.tensor.requires_grad_(false);
  EXPECT_EQ(needed({.level = ShardLevel::optimizer}), 0);
}

TEST(MemoryCheck, CountsEachUnitInTheDtypeOfItsRule) {
  std::vector<NamedParameter> parameters = {{"a", at::zeros({600}), {}},
                                            {"b", at::zeros({1200}), {}}};
  std::vector<layout::PlannedUnit> plan = {{"a", -1, {0}}, {"b", 0, {1}}};
  ShardOptions options{.units = {{"b", std::nullopt, at::kHalf}}, .level = ShardLevel::gradients};
  // The whole parameter in 16 bits, in addition to the existing four bytes per element.
  EXPECT_EQ(sharded::bytes_needed(parameters, plan, 1, options), 1200 * 2);
  plan.front().pattern = 0;
  EXPECT_EQ(sharded::bytes_needed(parameters, plan, 1, options), 1800 * 2);
}

TEST(MemoryCheck, MoreThanThereIsIsRefusedBeforeAnythingIsTaken) {
  for (ShardLevel level : all_levels)
    run_as_threads(2, [&](Group group) {
      torch::nn::Module model;
      at::Tensor small = model.register_parameter("small", values({3}, 1));
      at::Tensor huge = at::zeros({1}).expand({std::int64_t{1} << 46});
      model.register_parameter("huge", huge, /*requires_grad=*/false);
      auto refused = [&] { auto sharded = fully_shard(model, group, {.level = level}); };
      expect_words(message_of<BadInput>(refused), {"the ranks of one host (2)", "available"});
      EXPECT_FALSE(dispatch::is_lazy(small));
      EXPECT_TRUE(same_bits(small, values({3}, 1)));
    });
}

}  // namespace
}  // namespace lockstep
