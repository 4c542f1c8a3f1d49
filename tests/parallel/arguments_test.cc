// The arguments (model, ranks, options) of every strategy: ownership of the module, groups and
// meshes, null pointers.
#include "parallel/support.h"

#include <lockstep/mesh/ranks.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/data/sync_batch_norm.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {
namespace {

// Owns the handle of a module, whatever its type.
using Attached = std::shared_ptr<void>;
struct Given {
  std::string name;
  std::function<Attached(const ModuleRef& module, const lockstep::Ranks& ranks)> attach;
};

void PrintTo(const Given& given, std::ostream* out) { *out << given.name; }

template <typename Made>
Attached kept(Made made) {
  return std::make_shared<Made>(std::move(made));
}

std::vector<Given> all_strategies() {
  return {
      {"DistributedDataParallel",
       [](const ModuleRef& module, const lockstep::Ranks& ranks) {
         return kept(DistributedDataParallel(module, ranks));
       }},
      {"LocalSgd", [](const ModuleRef& module,
                      const lockstep::Ranks& ranks) { return kept(LocalSgd(module, ranks)); }},
      {"DiLoCo", [](const ModuleRef& module,
                    const lockstep::Ranks& ranks) { return kept(DiLoCo(module, ranks)); }},
      {"SyncBatchNorm",
       [](const ModuleRef& module, const lockstep::Ranks& ranks) {
         return kept(SyncBatchNorm(module, ranks));
       }},
      {"fully_shard",
       [](const ModuleRef& module, const lockstep::Ranks& ranks) {
         return kept(fully_shard(module, ranks, {.units = std::vector<std::string>{"0"}}));
       }},
  };
}

torch::nn::Sequential small_model() {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  fill_parameters(*model, 3);
  return model;
}

using Weak = std::weak_ptr<torch::nn::Module>;

class EveryArgument : public testing::TestWithParam<Given> {
 protected:
  static Attached attach(const ModuleRef& module, const lockstep::Ranks& ranks) {
    return GetParam().attach(module, ranks);
  }
};

TEST_P(EveryArgument, AHolderAndASharedPtrAreKeptAliveByTheHandle) {
  run_as_threads(2, [](Group group) {
    std::vector<std::function<Attached(Weak&)>> ways = {
        [&](Weak& module) {
          torch::nn::Sequential holder = small_model();
          module = holder.ptr();
          return attach(holder, group);
        },
        [&](Weak& module) {
          std::shared_ptr<torch::nn::SequentialImpl> impl = small_model().ptr();
          module = impl;
          return attach(impl, group);
        },
        [&](Weak& module) {
          std::shared_ptr<torch::nn::Module> any = small_model().ptr();
          module = any;
          return attach(any, group);
        },
        [&](Weak& module) {
          // The temporary dies at the end of the expression; the handle shares its ownership.
          return attach(std::invoke([&] {
                          torch::nn::Sequential holder = small_model();
                          module = holder.ptr();
                          return holder;
                        }),
                        group);
        }};
    for (const auto& way : ways) {
      Weak module;
      Attached handle = way(module);
      EXPECT_FALSE(module.expired());
      handle.reset();
      EXPECT_TRUE(module.expired());
    }
  });
}

TEST_P(EveryArgument, AReferenceIsNotKeptAlive) {
  run_as_threads(2, [](Group group) {
    torch::nn::Sequential model = small_model();
    const Attached handle = attach(*model, group);
    EXPECT_EQ(model.ptr().use_count(), 1);
  });
}

// Each handle shares ownership: when one is destroyed, the other still has the module.
TEST_P(EveryArgument, TwoHandlesShareAModule) {
  run_as_threads(2, [](Group group) {
    Weak module;
    Attached second;
    {
      torch::nn::Sequential model = small_model();
      module = model.ptr();
      torch::nn::Sequential layer = model;
      Attached first = attach(layer, group);
      if (GetParam().name == "SyncBatchNorm")
        second = kept(DistributedDataParallel(model, group));
      else if (GetParam().name != "fully_shard")
        second = kept(SyncBatchNorm(model, group));
    }
    EXPECT_EQ(module.expired(), second == nullptr);
    second.reset();
    EXPECT_TRUE(module.expired());
  });
}

TEST_P(EveryArgument, TakesAGroupAndAMesh) {
  run_as_threads(4, [](Group group) {
    const Mesh mesh(group, {{"dp", 2}, {"cp", 1}, {"fsdp", 2}});
    torch::nn::Sequential of_group = small_model(), of_mesh = small_model(),
                          of_axis = small_model();
    const Attached one = attach(of_group, group);
    const Attached two = attach(of_mesh, mesh);
    const Attached three = attach(of_axis, mesh["dp"]);
    const Attached four = attach(small_model(), mesh["tp"]);  // absent: one rank
  });
}

TEST_P(EveryArgument, ANullPointerIsOneLine) {
  const auto refusal = [](const ModuleRef& module) {
    return message_of<InvalidArgument>([&] { (void)attach(module, Group()); });
  };
  const std::string expected =
      GetParam().name + ": expected a module, found a null pointer or an empty holder";
  EXPECT_EQ(refusal(std::shared_ptr<torch::nn::Module>()), expected);
  EXPECT_EQ(refusal(std::shared_ptr<torch::nn::SequentialImpl>()), expected);
  EXPECT_EQ(refusal(torch::nn::Sequential(nullptr)), expected);
}

INSTANTIATE_TEST_SUITE_P(Strategies, EveryArgument, testing::ValuesIn(all_strategies()),
                         [](const auto& info) { return info.param.name; });

TEST(Arguments, AHandleOfLocalUpdatesKnowsTheMeshThatItWasGiven) {
  run_as_threads(2, [](Group group) {
    const Mesh mesh(group, {{"dp", 2}});
    torch::nn::Sequential one = small_model(), two = small_model();
    EXPECT_EQ(LocalSgd(one, mesh).mesh()->axes(), mesh.axes());
    EXPECT_EQ(DiLoCo(two, mesh).mesh()->axes(), mesh.axes());
    EXPECT_FALSE(LocalSgd(one, group).mesh().has_value());
  });
}

// A temporary module would be destroyed before the handle; a Mesh does not convert to its group.
static_assert(std::convertible_to<torch::nn::SequentialImpl&, ModuleRef>);
static_assert(!std::convertible_to<torch::nn::SequentialImpl&&, ModuleRef>);
static_assert(!std::convertible_to<const torch::nn::SequentialImpl&, ModuleRef>);
static_assert(!std::convertible_to<at::Tensor, ModuleRef>);

TEST(Arguments, AMeshIsNotTakenForItsGroup) {
  const Mesh mesh(Group(), {{"dp", 1}});
  EXPECT_TRUE(lockstep::Ranks(mesh).mesh().has_value());
  EXPECT_FALSE(lockstep::Ranks(mesh.group()).mesh().has_value());
}

TEST(Arguments, UnitsAreRulesOrPatterns) {
  const std::vector<std::string> patterns = {"a", "b"};
  EXPECT_EQ(ShardOptions{.units = patterns}.units.size(), 2U);
  EXPECT_EQ((ShardOptions{.units = {"a", {"b", false}, "c"}}.units[1].pattern), "b");
  EXPECT_EQ((ShardOptions{.units = std::vector<UnitRule>{"a"}}.units.size()), 1U);
  EXPECT_TRUE(ShardOptions{.units = {}}.units.empty());
  static_assert(!std::is_constructible_v<UnitRule, const char*, const char*>);
}

}  // namespace
}  // namespace lockstep::test
