#include <lockstep/data/loader_plan.h>

#include "data/refusal.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

using test::refusal;

constexpr LoaderState some{.epoch = 3,
                           .batches = 17,
                           .seed = ~std::uint64_t{0},
                           .samples = 60000,
                           .global_batch = 64,
                           .shuffle = false,
                           .drop_last = true};
constexpr const char* some_text =
    "epoch=3 batches=17 seed=18446744073709551615 samples=60000 global_batch=64 shuffle=0 "
    "drop_last=1";

TEST(LoaderState, GoesThroughText) {
  EXPECT_EQ(some.to_text(), some_text);
  EXPECT_EQ(LoaderState::from_text(some_text), some);
  EXPECT_EQ(LoaderState::from_text(LoaderState().to_text()), LoaderState());
}

TEST(LoaderState, RefusesOtherText) {
  const std::string text = some_text;
  EXPECT_EQ(refusal([] { (void)LoaderState::from_text(""); }),
            "reading a loader state: expected a field epoch, found none");
  EXPECT_EQ(refusal([&] { (void)LoaderState::from_text(text + " rank=0"); }),
            "reading a loader state: expected no other fields, found rank");
  EXPECT_EQ(refusal([&] { (void)LoaderState::from_text(text + " more"); }),
            "reading a loader state: expected name=number, found \"more\"");
  EXPECT_EQ(refusal([&] { (void)LoaderState::from_text("epoch=3x" + text.substr(7)); }),
            "reading a loader state: expected epoch to be a number, found \"3x\"");
  EXPECT_EQ(refusal([&] { (void)LoaderState::from_text(text.substr(0, text.size() - 1) + "2"); }),
            "reading a loader state: expected drop_last to be 0 or 1, found 2");
}

}  // namespace
}  // namespace lockstep::data
