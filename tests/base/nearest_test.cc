#include "base/text.h"

#include <gtest/gtest.h>

#include <array>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> known{"layers", "heads", "width", "block"};

TEST(Nearest, EditDistanceCountsEachKindOfSlipOnce) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("layers", "layers"), 0);
  EXPECT_EQ(edit_distance("laers", "layers"), 1);    // deletion
  EXPECT_EQ(edit_distance("layerss", "layers"), 1);  // insertion
  EXPECT_EQ(edit_distance("lazers", "layers"), 1);   // replacement
  EXPECT_EQ(edit_distance("alyers", "layers"), 1);   // swap
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, IsSymmetric) {
  for (auto a : known) {
    for (auto b : known) EXPECT_EQ(edit_distance(a, b), edit_distance(b, a)) << a << " " << b;
  }
}

TEST(Nearest, SuggestsWhatWasMeant) {
  EXPECT_EQ(nearest("laers", known), "layers");
  EXPECT_EQ(nearest("head", known), "heads");
  EXPECT_EQ(unknown_name("key", "laers", known), "unknown key 'laers'; did you mean 'layers'?");
}

TEST(Nearest, ListsTheKnownNamesWhenNothingIsNear) {
  EXPECT_FALSE(nearest("optimizer", known));
  EXPECT_EQ(unknown_name("key", "optimizer", known),
            "unknown key 'optimizer'; known: layers, heads, width, block");
  EXPECT_EQ(unknown_name("key", "x", {}), "unknown key 'x'; known: none");
}

}  // namespace
}  // namespace lockstep
