#include <lockstep/base/error.h>
#include <lockstep/layout/mesh_layout.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

using test::expect_words;
using test::message_of;

TEST(MeshLayout, CountsTheLastAxisFastest) {
  MeshLayout layout({{"pp", 2}, {"dp", 3}}, 6);
  EXPECT_EQ(layout.coordinates(4), (std::vector<int>{1, 1}));
  EXPECT_EQ(layout.rank_at(std::vector<int>{1, 2}), 5);
  EXPECT_EQ(layout.peers(4, std::vector<int>{0}), (std::vector<int>{1, 4}));
  EXPECT_EQ(layout.peers(4, std::vector<int>{1}), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(layout.peers(4, std::vector<int>{1, 0}), (std::vector<int>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(layout.peers(4, std::vector<int>{}), (std::vector<int>{4}));
}

TEST(MeshLayout, InfersOneSize) {
  EXPECT_EQ(MeshLayout({{"dp", -1}, {"tp", 2}}, 6).axes()[0].size, 3);
  EXPECT_EQ(MeshLayout({{"dp", -1}}, 1).axes()[0].size, 1);
  EXPECT_EQ(MeshLayout({{"dp", 4}, {"tp", -1}}, 4).axes()[1].size, 1);
}

TEST(MeshLayout, AnAbsentAxisHasSizeOne) {
  MeshLayout layout({{"dp", 3}, {"tp", 2}}, 6);
  EXPECT_EQ(layout.find("tp"), 1);
  EXPECT_EQ(layout.find("cp"), std::nullopt);
  EXPECT_EQ(layout.size("dp"), 3);
  EXPECT_EQ(layout.size("cp"), 1);
}

// For all three-axis meshes with sizes up to 4, coordinates and ranks correspond one to one, and
// the peers along any axes partition the ranks.
TEST(MeshLayout, RanksAndCoordinatesAreOneToOne) {
  for (int a = 1; a <= 4; ++a)
    for (int b = 1; b <= 4; ++b)
      for (int c = 1; c <= 4; ++c) {
        MeshLayout layout({{"a", a}, {"b", b}, {"c", c}}, a * b * c);
        std::set<std::vector<int>> places;
        for (int rank = 0; rank < layout.ranks(); ++rank) {
          std::vector<int> place = layout.coordinates(rank);
          EXPECT_TRUE(places.insert(place).second);
          EXPECT_EQ(layout.rank_at(place), rank);
        }
        for (const std::vector<int>& axes :
             {std::vector<int>{0}, {1}, {2}, {0, 1}, {2, 0}, {1, 2}, {2, 1, 0}}) {
          std::multiset<int> seen;
          for (int rank = 0; rank < layout.ranks(); ++rank) {
            std::vector<int> peers = layout.peers(rank, axes);
            EXPECT_EQ(std::ranges::count(peers, rank), 1);
            for (int peer : peers) EXPECT_EQ(layout.peers(peer, axes), peers);
            if (peers.front() == rank) seen.insert(peers.begin(), peers.end());
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(layout.ranks()));
          EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), seen.size());
        }
      }
}

TEST(MeshLayout, PrintsItself) {
  EXPECT_EQ(MeshLayout({{"dp", 2}, {"tp", 2}}, 4).picture(),
            "mesh dp=2, tp=2 (4 ranks)\n"
            "  dp 0, tp 0..1: ranks 0..1\n"
            "  dp 1, tp 0..1: ranks 2..3");
  EXPECT_EQ(MeshLayout({{"dp", 1}}, 1).picture(), "mesh dp=1 (1 ranks)\n  dp 0..0: rank 0");
}

TEST(MeshLayout, RefusesWhatMakesNoSense) {
  auto refused = [](std::vector<MeshAxis> axes, int ranks) {
    return message_of<InvalidArgument>([&] { MeshLayout layout(axes, ranks); });
  };
  expect_words(refused({}, 1), {"expected an axis"});
  expect_words(refused({{"dp", 2}}, 0), {"expected at least one rank"});
  expect_words(refused({{"", 2}}, 2), {"letters", "''"});
  expect_words(refused({{"d p", 2}}, 2), {"'d p'"});
  expect_words(refused({{"dp", 2}, {"dp", 1}}, 2), {"axis dp is given twice"});
  expect_words(refused({{"dp", 0}}, 1), {"axis dp", "size 0"});
  expect_words(refused({{"dp", -2}}, 1), {"axis dp", "size -2"});
  expect_words(refused({{"dp", -1}, {"tp", -1}}, 4), {"one axis", "found 2"});
  expect_words(refused({{"dp", 2}, {"tp", 3}}, 4),
               {"dp=2, tp=3", "product of the sizes, 6", "ranks, 4"});
  expect_words(refused({{"dp", -1}, {"tp", 3}}, 4), {"ranks, 4", "divisible by 3"});
  expect_words(refused({{"a", 1 << 20}, {"b", 1 << 20}, {"c", 1 << 24}}, 4),
               {"product of the sizes, "});
  MeshLayout layout({{"dp", 2}, {"tp", 2}}, 4);
  expect_words(message_of<InvalidArgument>([&] { (void)layout.axis("pd"); }), {"'pd'", "dp"});
  expect_words(message_of<InvalidArgument>([&] { (void)layout.coordinates(4); }), {"0..3", "4"});
  expect_words(message_of<InvalidArgument>([&] {
                 (void)layout.peers(0, std::vector<int>{1, 1});
               }),
               {"tp", "twice"});
}

TEST(MeshLayout, ReadsAxesFromText) {
  EXPECT_EQ(parse_axes("dp=2,tp=-1"), (std::vector<MeshAxis>{{"dp", 2}, {"tp", -1}}));
  EXPECT_EQ(parse_axes("fsdp=8"), (std::vector<MeshAxis>{{"fsdp", 8}}));
  for (const char* text :
       {"", "dp", "dp=", "dp=two", "dp=2,", ",dp=2", "dp=2;tp=2", "dp=-3", "dp=99999999999"})
    expect_words(message_of<BadInput>([&] { (void)parse_axes(text); }), {"name=size", text});
}

}  // namespace
}  // namespace lockstep
