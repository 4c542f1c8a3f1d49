// State dicts of arbitrary parts, without a strategy.
#include "parallel/state_dict.h"
#include "parallel/support.h"

#include <lockstep/comm/local.h>
#include <lockstep/parallel/handle.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lockstep {
namespace {

using namespace test;

class ListedParts final : public HandleState {
 public:
  ListedParts(Group group, std::vector<Part> parts)
      : HandleState(std::move(group)), parts_(std::move(parts)) {}

  void detach() override {}
  [[nodiscard]] std::vector<Part> named_parameters() const override { return parts_; }
  void zero_grad(bool) override {}
  void set_requires_gradient_sync(bool) override {}
  [[nodiscard]] std::vector<Part> state_parts() override { return parts_; }
  void begin_load() override { ++loads_; }
  void end_load(bool complete) override { complete_ = complete; }
  [[nodiscard]] HandleMemory memory() const override { return {}; }
  [[nodiscard]] double seconds_waited() const override { return 0; }

  int loads_ = 0;
  bool complete_ = false;

 private:
  std::vector<Part> parts_;
};

using Wholes = std::map<std::string, at::Tensor>;

Wholes model() {
  Wholes all;
  all["cut"] = at::arange(60, at::kFloat).view({6, 10});
  all["order"] = at::arange(35, at::kDouble).view({7, 5});
  all["bytes"] = at::arange(9, at::kByte);
  all["large"] = at::arange(std::int64_t{3} << 20, at::kLong).view({3, -1});  // 24 MiB
  all["after"] = at::arange(std::int64_t{3} << 19, at::kLong);
  all["tied"] = at::arange(4, at::kFloat);
  all["last"] = at::arange(3, at::kBFloat16);
  all["own"] = at::arange(2, at::kInt);
  all["none"] = at::empty({0, 3});
  all["alias"] = all["tied"];
  return all;
}

Part part_of(const Wholes& wholes, const std::string& name, layout::TensorSlice slice) {
  Part part{name, at::Tensor(), {}, std::move(slice)};
  part.tensor = cut_part(wholes.at(name), part);
  return part;
}

// Returns the parts of rank `rank` of `ranks`: row-major and column-major ranges, whole tensors on
// all ranks or one, and a tensor that differs per rank.
std::vector<Part> parts_of(const Wholes& wholes, int rank, int ranks) {
  std::vector<Part> parts;
  const auto range = [&](const std::string& name, std::vector<int> dim_order = {}) {
    const std::int64_t numel = wholes.at(name).numel();
    const layout::Range own{numel * rank / ranks, numel * (rank + 1) / ranks};
    parts.push_back(part_of(
        wholes, name, layout::range_slice(wholes.at(name).sizes(), own, std::move(dim_order))));
  };
  const auto whole = [&](const std::string& name) {
    parts.push_back(
        {name, wholes.at(name).clone(), {}, layout::whole_slice(wholes.at(name).sizes())});
  };
  range("cut");
  range("order", {1, 0});
  range("bytes");
  range("large");
  range("after");
  if (rank == 0) {
    whole("tied");
    parts.back().aliases = {"alias"};
  }
  if (rank == ranks - 1) whole("last");
  whole("none");
  whole("own");
  parts.back().tensor.add_(rank);
  parts.back().kind = PartKind::ignored;
  return parts;
}

TEST(StateDict, IsMadeOfThePartsOfAllRanksAndCutIntoThemAgain) {
  const Wholes wholes = model();
  for (int ranks : {1, 2, 3, 5})
    run_as_threads(ranks, [&](Group group) {
      const auto state =
          std::make_shared<ListedParts>(group, parts_of(wholes, group.rank(), group.size()));
      const Wholes found = parallel::get_model_state_dict(*state);
      ASSERT_EQ(found.size(), wholes.size());
      for (const auto& [name, tensor] : wholes)
        EXPECT_TRUE(found.at(name).equal(name == "own" ? tensor + group.rank() : tensor)) << name;
      Wholes other;
      for (const auto& [name, tensor] : found) other[name] = tensor + 1;
      parallel::set_model_state_dict(state, other);
      EXPECT_EQ(state->loads_, 1);
      EXPECT_TRUE(state->complete_);
      for (const auto& [name, tensor] : parallel::get_model_state_dict(*state))
        EXPECT_TRUE(tensor.equal(other.at(name))) << name;
    });
}

// A copy of an earlier state must not change with the handle.
TEST(StateDict, HasMemoryOfItsOwn) {
  run_as_threads(2, [&](Group group) {
    const Wholes wholes = model();
    ListedParts state(group, parts_of(wholes, group.rank(), group.size()));
    const Wholes found = parallel::get_model_state_dict(state);
    for (const Part& part : state.state_parts()) part.tensor.zero_();
    for (const char* name : {"cut", "tied", "last"})
      EXPECT_TRUE(found.at(name).equal(wholes.at(name))) << name;
  });
}

TEST(StateDict, WhatDoesNotFitIsRefusedOnEveryRankBeforeAnythingIsWritten) {
  const Wholes wholes = model();
  run_as_threads(3, [&](Group group) {
    const auto state =
        std::make_shared<ListedParts>(group, parts_of(wholes, group.rank(), group.size()));
    const Wholes before = parallel::get_model_state_dict(*state);
    const auto refused = [&](Wholes tensors) {
      return message_of<BadInput>([&] { parallel::set_model_state_dict(state, tensors); });
    };
    Wholes wrong = before;
    wrong.erase("last");  // only one rank has it
    EXPECT_EQ(refused(wrong), "loading a model: expected a tensor named last, found none");
    wrong = before;
    wrong["order"] = at::ones({5, 7}, at::kDouble);
    EXPECT_EQ(refused(wrong), "loading a model: order: expected shape [7, 5], found [5, 7]");
    wrong = before;
    wrong["alias"] = wrong["alias"] + 1;  // only one rank knows that it is tied
    EXPECT_EQ(
        refused(wrong),
        "loading a model: alias is tied to tied: expected equal values, found different ones");
    wrong = before;
    wrong["more"] = at::ones({1});
    EXPECT_EQ(refused(wrong),
              "loading a model: found a tensor named more that the model does not have");
    EXPECT_EQ(state->loads_, 0);
    for (const auto& [name, tensor] : parallel::get_model_state_dict(*state))
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;
  });
}

TEST(StateDict, ElementsThatNoRankHasAreAnError) {
  const Wholes wholes = model();
  run_as_threads(3, [&](Group group) {
    std::vector<Part> parts = parts_of(wholes, group.rank(), group.size());
    if (group.rank() == 1) parts.erase(parts.begin());
    ListedParts state(group, std::move(parts));
    EXPECT_EQ(message_of<InvalidArgument>([&] { (void)parallel::get_model_state_dict(state); }),
              "state dict: cut: expected 60 elements on the ranks of the handle, found 40");
  });
}

TEST(StateDict, RanksThatDescribeATensorDifferentlyAreAnError) {
  run_as_threads(2, [&](Group group) {
    Wholes wholes;
    wholes["w"] = at::ones({4}, group.is_root() ? at::kFloat : at::kDouble);
    ListedParts state(group, {part_of(wholes, "w", layout::whole_slice(wholes["w"].sizes()))});
    EXPECT_EQ(message_of<InvalidArgument>([&] { (void)parallel::get_model_state_dict(state); }),
              "state dict: w: expected a tensor of Float [4], as a lower rank has it, found Double "
              "[4] on rank 1");
  });
}

}  // namespace
}  // namespace lockstep

namespace lockstep::parallel {
namespace {

std::vector<Part> parts_of(int rank) {
  std::vector<Part> parts;
  for (int i = 0; i < rank; ++i)
    parts.push_back(
        {.name = std::string(static_cast<std::size_t>(7 * i), 'x') + "\n\xff",
         .tensor =
             no_elements(i % 2 == 0 ? at::kFloat : at::kBFloat16, i == 3 ? c10::kMeta : c10::kCPU),
         .aliases = std::vector<std::string>(static_cast<std::size_t>(i % 3), "tied"),
         .slice = layout::range_slice(std::vector<std::int64_t>{4, 6}, {i, 9 + i},
                                      i == 1 ? std::vector<int>{1, 0} : std::vector<int>{}),
         .kind = static_cast<PartKind>(i % 3)});
  if (rank == 2)
    parts.push_back(
        {.name = "", .tensor = no_elements(at::kLong), .slice = layout::whole_slice({})});
  return parts;
}

bool are_equal(const Part& one, const Part& other) {
  return one.name == other.name && one.aliases == other.aliases && one.slice == other.slice &&
         one.kind == other.kind && one.tensor.dtype() == other.tensor.dtype() &&
         one.tensor.device().type() == other.tensor.device().type() && other.tensor.numel() == 0;
}

TEST(PartExchange, EveryRankGetsEveryList) {
  for (int ranks : {1, 2, 3, 5})
    run_as_threads(ranks, [&](Group group) {
      auto all = exchange_parts(group, parts_of(group.rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_TRUE(
            std::ranges::equal(parts_of(rank), all[static_cast<std::size_t>(rank)], are_equal));
    });
}

// Without the checks, such words would be read beyond their end.
TEST(PartExchange, WordsOfAnotherRankThatDescribeNoPartsAreAnError) {
  const std::vector<std::vector<std::int64_t>> lists = {{}, {-1}, {2}, {1, 100}, {1, 1, 'a', 99}};
  for (std::vector<std::int64_t> words : lists)
    run_as_threads(2, [&](Group group) {
      if (group.is_root()) {
        expect_contains(message_of<Mismatch>([&] { (void)exchange_parts(group, {}); }),
                        "exchange of parts: ");
        return;
      }
      constexpr CallOptions call{.tag = "exchange of parts"};
      std::vector<std::int64_t> lengths(2), all(1 + words.size());
      auto own = std::ssize(words);
      const auto view = [](std::int64_t* numbers, std::int64_t count) {
        return at::from_blob(numbers, {count}, at::kLong);
      };
      group.all_gather(view(lengths.data(), 2), view(&own, 1), call).wait();
      if (words.empty()) return;  // the root refuses the length
      group.all_gather(view(all.data(), std::ssize(all)), view(words.data(), own), lengths, call)
          .wait();
    });
}

}  // namespace
}  // namespace lockstep::parallel
