#include "parallel/state_dict.h"

#include <lockstep/comm/local.h>

#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace lockstep::parallel
