#include "parallel/state_dict.h"

#include <lockstep/comm/local.h>

#include <gtest/gtest.h>

namespace lockstep::parallel {
namespace {

std::vector<PartDescription> parts_of(int rank) {
  std::vector<PartDescription> parts;
  for (int i = 0; i < rank; ++i)
    parts.push_back(
        {.name = std::string(static_cast<std::size_t>(7 * i), 'x') + "\n\xff",
         .dtype = i % 2 == 0 ? at::kFloat : at::kBFloat16,
         .slice = layout::range_slice(std::vector<std::int64_t>{4, 6}, {i, 9 + i},
                                      i == 1 ? std::vector<int>{1, 0} : std::vector<int>{}),
         .is_replaced = i == 2,
         .aliases = std::vector<std::string>(static_cast<std::size_t>(i % 3), "tied"),
         .device = i == 3 ? c10::kCUDA : c10::kCPU});
  if (rank == 2) parts.push_back({"", at::kLong, layout::whole_slice({}), false});
  return parts;
}

TEST(PartExchange, EveryRankGetsEveryList) {
  for (int ranks : {1, 2, 3, 5})
    run_as_threads(ranks, [&](Group group) {
      auto all = exchange_parts(group, parts_of(group.rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], parts_of(rank));
    });
}

}  // namespace
}  // namespace lockstep::parallel
