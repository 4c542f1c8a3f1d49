#include "module/checks.h"
#include "module/tensors.h"

#include <lockstep/comm/run_on_all_or_fail.h>

#include "parallel/support.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep {
namespace {

using namespace test;
using modules::check_same_lines;

using Lines = std::vector<std::string>;

class ModuleCheck : public testing::TestWithParam<BackendRanks> {};

TEST_P(ModuleCheck, SaysNothingWhenAllAgree) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    check_same_lines(group, Lines{});
    check_same_lines(group, Lines{"a", "b"});
    check_same_lines(group, Lines(1000, "a long model"));
    // Each check made only one call, so the lines themselves were not exchanged; the next call is
    // number 4.
    if (group.size() == 1) return;
    auto differs = at::ones({group.rank() + 1});
    auto text = message_of<Mismatch>([&] { group.all_reduce(differs).wait(); });
    expect_contains(text, "all_reduce #4 ");
  });
}

TEST_P(ModuleCheck, NamesTheFirstLineThatDiffersAndItsRank) {
  if (GetParam().size == 1) GTEST_SKIP() << "one rank cannot differ";
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    bool last = group.rank() == group.size() - 1;
    std::string rank = std::to_string(group.size() - 1);
    auto text = [&](const Lines& of_last, const Lines& of_others) {
      return message_of<Mismatch>([&] { check_same_lines(group, last ? of_last : of_others); });
    };
    expect_contains(text({"a", "x", "c"}, {"a", "b", "d"}),
                    "rank 0 has b; rank " + rank + " has x");
    expect_contains(text({"a"}, {"a", "b"}), "rank 0 has b; rank " + rank + " has nothing more");
    expect_contains(text({"a", "b"}, {"a"}), "rank 0 has nothing more; rank " + rank + " has b");
    expect_contains(text({}, {"a"}), "rank 0 has a; rank " + rank + " has nothing more");
    check_same_lines(group, Lines{"the group lives"});
  });
}

TEST_P(ModuleCheck, TheRootActsForAllRanks) {
  run_group(GetParam().backend, GetParam().size, [](Group group) {
    int calls = 0;
    modules::run_on_root_or_fail(group, [&] { ++calls; });
    EXPECT_EQ(calls, group.is_root() ? 1 : 0);
    EXPECT_EQ(modules::text_of_root(group, [&] { return std::to_string(group.rank()); }), "0");
    const auto fail = [&] {
      return modules::text_of_root(group, []() -> std::string { throw BadInput("no file x"); });
    };
    expect_contains(message_of<CollectiveFailure>(fail), "no file x");
  });
}

TEST(IgnoredTensors, AreFoundByAnyOfTheirNames) {
  const auto model = std::make_shared<torch::nn::Module>();
  const at::Tensor shared = at::zeros({2});
  model->register_buffer("first", shared);
  model->register_buffer("second", shared);
  model->register_buffer("other", at::zeros({2}));
  for (const char* name : {"first", "second"}) {
    const std::vector<std::string> ignored = {name};
    const modules::ModuleTensors tensors = modules::tensors_of(*model, ignored);
    ASSERT_EQ(tensors.buffers.size(), 1U) << name;
    EXPECT_EQ(tensors.buffers[0].name, "other");
    ASSERT_EQ(tensors.ignored.size(), 1U) << name;
    EXPECT_TRUE(tensors.ignored[0].is_same(shared)) << name;
  }
}

TEST(Buffers, ThatGetAGradientAreRefused) {
  const auto model = std::make_shared<torch::nn::LinearImpl>(2, 3);
  // Its gradient goes on to the weight.
  model->register_buffer("computed", model->weight.mean(0));
  modules::check_ordinary(modules::tensors_of(*model), "Strategy");
  model->register_buffer("scale", at::ones({2}).requires_grad_());
  const std::string text = message_of<InvalidArgument>(
      [&] { modules::check_ordinary(modules::tensors_of(*model), "Strategy"); });
  expect_contains(text, "Strategy: buffer scale requires a gradient");
  const std::vector<std::string> ignored = {"scale"};
  modules::check_ordinary(modules::tensors_of(*model, ignored), "Strategy");
}

TEST(ModuleWatch, NamesNewBuffersThatTheHandleBroadcasts) {
  const auto model = std::make_shared<torch::nn::Module>();
  model->register_module("own", torch::nn::Linear(2, 2));
  model->register_buffer("old", at::zeros({2}));
  const modules::ModuleWatch with(*model, {"own"}, "it was made", /*with_buffers=*/true);
  const modules::ModuleWatch without(*model, {"own"}, "it was made", /*with_buffers=*/false);
  model->named_buffers()["old"].set_data(at::ones({3}));
  model->named_children()["own"]->register_buffer("ignored", at::zeros({2}));
  with.check();
  model->register_buffer("new", at::zeros({2}));
  expect_contains(message_of<InvalidArgument>([&] { with.check(); }),
                  "new is a new buffer since it was made");
  without.check();
}

INSTANTIATE_TEST_SUITE_P(All, ModuleCheck,
                         testing::ValuesIn(ranks_of({BackendKind::local, BackendKind::shm},
                                                    {1, 2, 3})),
                         name_of_ranks);

}  // namespace
}  // namespace lockstep
