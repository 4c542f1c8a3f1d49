// Shards in host memory, of parameters on a test device.
#include "parallel/sharded/unit_gradients.h"
#include "parallel/sharded/unsharder.h"

#include "parallel/sharded/support.h"
#include "support/torch/late_device.h"
#include "support/torch/staged_ranks.h"

#include "dispatch/key.h"

#include <memory>
#include <vector>

namespace lockstep {
namespace {

using namespace test;
using sharded::Offload;
using sharded::Unit;
using sharded::UnitGradients;

// A unit of two parameters whose shards are in host memory.
struct OffloadedUnit {
  OffloadedUnit(Group ranks, ShardLevel level, std::filesystem::path folder)
      : group(std::move(ranks)),
        offload(std::make_shared<Offload>(std::move(folder))),
        pool(std::make_shared<sharded::BufferPool>(group)),
        unsharder(level, 1, group, group) {
    std::vector<NamedParameter> members;
    for (int i = 0; i < 2; ++i) {
      parameters.push_back(on_late_device(initial(i)).requires_grad_());
      members.push_back({"p" + std::to_string(i), parameters.back(), {}});
    }
    unsharder.add("u", std::move(members), pool,
                  sharded::UnitSettings{.options = {.level = level},
                                        .key = dispatch::key(),
                                        .offload = offload,
                                        .shard_group = shard_group});
  }

  static at::Tensor initial(int i) { return i == 0 ? values({5, 3}, 1) : values({4}, 2); }
  Unit& unit() { return *unsharder.units().front(); }
  // Expects the values of both parameters on the device.
  void expect_whole(double added) {
    at::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) {
      at::Tensor found = parameters[static_cast<std::size_t>(i)].cpu();
      EXPECT_TRUE(at::equal(found, initial(i) + added)) << i << " after " << added;
    }
    unsharder.end_iteration();
  }

  Group group;
  std::shared_ptr<ShardGroup> shard_group =
      std::make_shared<ShardGroup>(std::make_shared<Group>(group));
  std::shared_ptr<Offload> offload;
  std::shared_ptr<sharded::BufferPool> pool;
  sharded::Unsharder unsharder;
  std::vector<at::Tensor> parameters;
};

class HostShards : public testing::TestWithParam<std::tuple<ShardLevel, bool, int>> {
 protected:
  void run(const std::function<void(Group, OffloadedUnit&)>& body) {
    auto [level, to_files, ranks] = GetParam();
    TemporaryFolder folder;
    run_staged(ranks, [&, level = level, to_files = to_files](const Group& group) {
      OffloadedUnit one(group, level, to_files ? folder.path() : std::filesystem::path());
      body(group, one);
    });
  }
};

TEST_P(HostShards, AreCopiedToTheDeviceWhenTheyAreGathered) {
  run([](Group, OffloadedUnit& one) {
    EXPECT_EQ(one.unit().shard_bytes(), 0);
    EXPECT_EQ(one.offload->bytes(), one.unit().range().length() * 4);
    one.expect_whole(0);
    for (const at::Tensor& slice : one.unit().slices()) {
      EXPECT_TRUE(slice.is_cpu());
      at::NoGradGuard no_grad;
      slice.add_(1);
    }
    one.unsharder.invalidate();
    one.expect_whole(1);
    auto whole = one.unit().whole_values();
    EXPECT_TRUE(at::equal(whole.at(0), OffloadedUnit::initial(0) + 1));
    one.unit().hand_back();
    EXPECT_EQ(one.parameters[0].device(), late_device());
    EXPECT_TRUE(at::equal(one.parameters[0].detach().cpu(), OffloadedUnit::initial(0) + 1));
  });
}

TEST_P(HostShards, TakeWhatWasWrittenOnTheDevice) {
  run([](Group, OffloadedUnit& one) {
    at::NoGradGuard no_grad;
    one.parameters[0].copy_(OffloadedUnit::initial(0) + 2);
    one.parameters[1].copy_(OffloadedUnit::initial(1) + 2);
    one.unsharder.end_iteration();
    one.expect_whole(2);
    one.unsharder.invalidate();
    one.expect_whole(2);
  });
}

TEST_P(HostShards, HaveAveragesOfGradientsBesideThem) {
  run([](Group group, OffloadedUnit& one) {
    Group itself;
    UnitGradients gradients(one.unit(), one.group, itself, one.pool, nullptr);
    double mean = 0;
    for (int rank = 1; rank <= group.size(); ++rank) mean += rank / double(group.size());
    for (int round = 1; round <= 3; ++round) {
      for (int i = 0; i < 2; ++i) {
        at::Tensor& parameter = one.parameters[static_cast<std::size_t>(i)];
        parameter.mutable_grad() =
            on_late_device(at::full(parameter.sizes(), group.rank() + 1, at::kFloat));
        gradients.accept(i);
      }
      gradients.post();
      gradients.publish();
      for (const at::Tensor& slice : one.unit().slices()) {
        EXPECT_TRUE(slice.grad().is_cpu());
        EXPECT_TRUE(at::equal(slice.grad(), at::full_like(slice.grad(), round * mean)));
      }
    }
    gradients.clear(/*set_to_none=*/true);
  });
}

INSTANTIATE_TEST_SUITE_P(LevelsAndRanks, HostShards,
                         testing::Combine(testing::Values(ShardLevel::optimizer,
                                                          ShardLevel::gradients, ShardLevel::full),
                                          testing::Bool(), testing::Values(1, 2, 3)));

TEST(ShardedOffload, GoesToOnePlace) {
  torch::nn::Linear model(2, 2);
  EXPECT_THROW((void)fully_shard(model, Group(), {.offload = "x", .offload_to_host = true}),
               InvalidArgument);
}

// Parameters on the host are not offloaded.
TEST(ShardedOffload, ToTheHostIsNothingForParametersOfTheHost) {
  torch::nn::Linear model(2, 2);
  auto sharded = fully_shard(model, Group(), {.offload_to_host = true});
  EXPECT_EQ(sharded.memory().offloaded, 0);
  EXPECT_EQ(sharded.state_memory(), nullptr);
}

}  // namespace
}  // namespace lockstep
