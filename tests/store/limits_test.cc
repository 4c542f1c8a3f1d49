#include "store/limits.h"

#include <gtest/gtest.h>

namespace lockstep::store {
namespace {

TEST(Limits, KeysHaveOneByteAtLeast) {
  EXPECT_THROW(check_key(""), BadInput);
  EXPECT_NO_THROW(check_key("k"));
  EXPECT_NO_THROW(check_key(std::string(Store::max_key_bytes, 'k')));
  EXPECT_THROW(check_key(std::string(Store::max_key_bytes + 1, 'k')), BadInput);
}

TEST(Limits, AddSaysWhatItFound) {
  EXPECT_EQ(add_to_number("key", "-1", 1), 0);
  try {
    (void)add_to_number("key", "seven", 1);
    FAIL() << "no exception";
  } catch (const BadInput& error) {
    EXPECT_STREQ(error.what(), "store: add to key 'key' expected a decimal number, found 'seven'");
  }
}

TEST(Limits, AFewMissingKeysAreNamedAndManyCounted) {
  std::vector<std::string> keys{"a"};
  EXPECT_STREQ(missing_keys(keys, std::chrono::seconds(5)).what(),
               "store: key 'a' did not come within 5s");
  keys = {"a", "b", "c", "d", "e", "f", "g"};
  EXPECT_STREQ(missing_keys(keys, std::chrono::seconds(90)).what(),
               "store: keys 'a', 'b', 'c', 'd', 'e' and 2 more did not come within 1m30s");
}

}  // namespace
}  // namespace lockstep::store
