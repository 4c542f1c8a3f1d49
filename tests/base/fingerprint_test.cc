#include "base/fingerprint.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <vector>

namespace lockstep {
namespace {

// Fingerprints are compared between processes of one run, and must not change between builds.
static_assert(fingerprint("") == mix_bits(0xcbf29ce484222325ULL));
static_assert(fingerprint("bucket 2") != fingerprint("bucket 3"));
static_assert(fingerprint_of(1, 2) != fingerprint_of(2, 1));
static_assert(fingerprint_of(0) != fingerprint_of(0, 0));

TEST(Fingerprint, ListAndArgumentsAgree) {
  std::vector<int> values{3, 1, 2};
  EXPECT_EQ(fingerprint_of(std::span<const int>(values)), fingerprint_of(3, 1, 2));
}

TEST(Fingerprint, HalfOfTheBitsChangeWithOne) {
  double changed = 0;
  int cases = 0;
  for (std::uint64_t value = 0; value < 64; ++value) {
    for (int bit = 0; bit < 64; ++bit, ++cases) {
      changed +=
          std::popcount(fingerprint_of(value) ^ fingerprint_of(value ^ (std::uint64_t{1} << bit)));
    }
  }
  EXPECT_NEAR(changed / cases, 32.0, 0.5);
}

TEST(Fingerprint, NamesDoNotCollide) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 100'000; ++i)
    seen.insert(fingerprint("blocks." + std::to_string(i) + ".weight"));
  EXPECT_EQ(seen.size(), 100'000u);
}

}  // namespace
}  // namespace lockstep
