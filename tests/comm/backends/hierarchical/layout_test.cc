// Tests which ranks share a host.
#include "comm/backends/hierarchical/layout.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

using namespace lockstep;
using namespace lockstep::hierarchical;

namespace {

using Ranks = std::vector<int>;
using Names = std::vector<std::string>;

TEST(HostLayout, HostsAreNumberedByTheirFirstRank) {
  auto layout = make_layout(Names{"b", "a", "b", "c", "a"}, 4);
  EXPECT_EQ(layout.hosts, (std::vector<Ranks>{{0, 2}, {1, 4}, {3}}));
  EXPECT_EQ(layout.host, 1);
  EXPECT_EQ(layout.place, 1);
  EXPECT_EQ(layout.local(), (Ranks{1, 4}));
  EXPECT_EQ(layout.size(), 5);
  EXPECT_EQ(layout.host_of(3), 2);
  EXPECT_EQ(layout.place_of(2), 1);
}

TEST(HostLayout, EqualsSpeakAcrossEvenHosts) {
  auto layout = make_layout(Names{"a", "b", "a", "b"}, 3);
  EXPECT_TRUE(layout.is_even());
  EXPECT_TRUE(layout.is_across());
  EXPECT_EQ(layout.across(), (Ranks{2, 3}));
}

TEST(HostLayout, TheFirstOfEachSpeakAcrossUnevenHosts) {
  auto first = make_layout(Names{"a", "a", "b"}, 0);
  auto second = make_layout(Names{"a", "a", "b"}, 1);
  EXPECT_FALSE(first.is_even());
  EXPECT_TRUE(first.is_across());
  EXPECT_FALSE(second.is_across());
  EXPECT_EQ(second.across(), (Ranks{0, 2}));
}

}  // namespace
