// The units that are present after each use.
#include "parallel/sharded/unsharder.h"

#include "parallel/sharded/support.h"

#include "dispatch/key.h"

#include <torch/csrc/autograd/autograd.h>

namespace lockstep {
namespace {

using namespace test;
using sharded::Unit;
using sharded::Unsharder;

// Four units of one parameter each, in a group of one rank.
struct Units {
  explicit Units(ShardLevel level, int prefetch = 1, bool reshard = true)
      : unsharder(level, prefetch, group, group) {
    auto pool = std::make_shared<sharded::BufferPool>(group);
    for (int i = 0; i < 4; ++i) {
      parameters.push_back(values({3, 2}, i).requires_grad_());
      std::vector<NamedParameter> members = {{"p" + std::to_string(i), parameters.back(), {}}};
      unsharder.add(
          "u" + std::to_string(i), std::move(members), pool,
          sharded::UnitSettings{.options = {.level = level, .reshard_after_forward = reshard},
                                .key = dispatch::key(),
                                .shard_group = shard_group});
    }
  }

  void use(int i) {
    EXPECT_TRUE(same_bits(parameters[static_cast<std::size_t>(i)].clone(), values({3, 2}, i)));
  }
  void use_in_order(const std::vector<int>& order) {
    for (int i : order) use(i);
  }
  const Unit& unit(int i) { return *unsharder.units()[static_cast<std::size_t>(i)]; }
  // "-" absent, "a" arriving, "P" present.
  std::string state() {
    std::string text;
    for (int i = 0; i < 4; ++i) text += unit(i).present() ? "P" : unit(i).arriving() ? "a" : "-";
    return text;
  }

  Group group;
  std::shared_ptr<ShardGroup> shard_group =
      std::make_shared<ShardGroup>(std::make_shared<Group>(group));
  Unsharder unsharder;
  std::vector<at::Tensor> parameters;
};

TEST(Unsharder, FullHasOneUnitAtATime) {
  Units units(ShardLevel::full);
  EXPECT_EQ(units.state(), "----");
  units.use(1);
  EXPECT_EQ(units.state(), "-P--");
  units.use(1);
  units.use(3);
  EXPECT_EQ(units.state(), "---P");
  at::Tensor both = units.parameters[0] + units.parameters[2];
  EXPECT_EQ(units.state(), "P-P-");
  units.use(0);
  EXPECT_EQ(units.state(), "P---");
  units.unsharder.end_iteration();
  EXPECT_EQ(units.state(), "----");
}

TEST(Unsharder, GathersAheadInTheOrderOfTheStepBefore) {
  Units units(ShardLevel::full, /*prefetch=*/2);
  units.use_in_order({0, 1, 2, 3, 2});
  units.unsharder.end_iteration();
  units.use(0);
  EXPECT_EQ(units.state(), "Paa-");
  units.use(1);
  EXPECT_EQ(units.state(), "-Paa");
  units.use(2);
  EXPECT_EQ(units.state(), "--Pa");
  units.use(3);
  EXPECT_EQ(units.state(), "--aP");
  units.use(2);
  units.unsharder.end_iteration();
  EXPECT_EQ(units.state(), "----");
}

TEST(Unsharder, AnotherOrderIsServedAndBecomesTheNextOne) {
  Units units(ShardLevel::full);
  units.use_in_order({0, 1, 2});
  units.unsharder.end_iteration();
  units.use(0);
  EXPECT_EQ(units.state(), "Pa--");
  units.use(3);
  EXPECT_EQ(units.state(), "-a-P");
  units.use(1);
  EXPECT_EQ(units.state(), "-P--");
  units.unsharder.end_iteration();
  units.use(0);
  EXPECT_EQ(units.state(), "P--a");
}

TEST(Unsharder, ASecondBackwardOfAForwardDoesNotChangeTheOrder) {
  Units units(ShardLevel::full);
  for (int step = 0; step < 2; ++step) {
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& parameter : units.parameters)
      loss = loss + (parameter * parameter).sum();
    for (int again = 0; again < 2; ++again) {
      (void)torch::autograd::grad({loss}, units.parameters, {}, /*retain_graph=*/true);
      units.unsharder.end_iteration();
    }
  }
  units.use(0);
  EXPECT_EQ(units.state(), "Pa--");
}

TEST(Unsharder, GathersNothingAheadWithoutGradientsOrAfterAFailure) {
  Units units(ShardLevel::full);
  units.use_in_order({0, 1, 2});
  units.unsharder.end_iteration();
  {
    torch::NoGradGuard no_grad;
    units.use(0);
    EXPECT_EQ(units.state(), "P---");
  }
  units.unsharder.end_failed_iteration();
  units.use_in_order({1, 0});
  EXPECT_EQ(units.state(), "P---");
}

TEST(Unsharder, UnitsMayStayUntilTheirGradientsAreDone) {
  Units units(ShardLevel::full, 1, /*reshard=*/false);
  units.use_in_order({0, 1, 2});
  EXPECT_EQ(units.state(), "PPP-");
  units.unsharder.unit_done(1);
  EXPECT_EQ(units.state(), "P-P-");
  units.unsharder.end_iteration();
  EXPECT_EQ(units.state(), "----");
}

TEST(Unsharder, OtherLevelsGatherAllOnceAStep) {
  for (ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients}) {
    Units units(level);
    units.use(2);
    EXPECT_EQ(units.state(), "aaPa");
    units.use_in_order({0, 1, 3, 0});
    EXPECT_EQ(units.state(), "PPPP");
    units.unsharder.end_iteration();
    EXPECT_EQ(units.state(), "----");
  }
}

TEST(Unsharder, HoldsAllWhileSomebodyLooks) {
  Units units(ShardLevel::full);
  units.unsharder.hold_all();
  EXPECT_EQ(units.state(), "PPPP");
  units.use_in_order({0, 3});
  units.unsharder.hold_all();
  units.unsharder.release_all();
  EXPECT_EQ(units.state(), "PPPP");
  units.unsharder.release_all();
  EXPECT_EQ(units.state(), "----");
}

TEST(Unsharder, GathersAgainWhatAnOptimizerHasWritten) {
  for (ShardLevel level : all_levels) {
    Units units(level);
    units.use(1);
    {
      torch::NoGradGuard no_grad;
      units.unit(1).slices().front().fill_(7);
    }
    EXPECT_TRUE(units.unit(1).outdated());
    EXPECT_EQ(units.parameters[1].sum().item<float>(), 42);
  }
}

TEST(Unsharder, AnExceptionLeavesNoPin) {
  Units units(ShardLevel::full);
  EXPECT_THROW((void)units.parameters[0].mm(units.parameters[1]), c10::Error);
  units.use(2);
  EXPECT_EQ(units.state(), "--P-");
}

}  // namespace
}  // namespace lockstep
