#include "parallel/server/key_plan.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <random>

namespace lockstep::ps {
namespace {

Key key_of_sizes(std::vector<std::int64_t> sizes, std::int64_t element_bytes = 4) {
  return {.name = "k", .element_bytes = element_bytes, .sizes = std::move(sizes)};
}

TEST(KeyPlan, TheExampleOfTheHeader) {
  std::vector<Key> keys{key_of_sizes({5, 2}), key_of_sizes({10}), key_of_sizes({5, 2})};
  auto plan = plan_keys(keys, 2);
  EXPECT_EQ(plan[0], (std::vector<Piece>{{0, {0, 5}}, {1, {0, 5}}}));
  EXPECT_EQ(plan[1], (std::vector<Piece>{{1, {5, 10}}, {2, {0, 5}}}));
}

// Every row occurs once, in order; no server has more than its even share of bytes plus one row.
TEST(KeyPlan, DividesBytesEvenlyAndLosesNoRow) {
  std::mt19937 random(5);
  auto below = [&](int most) { return static_cast<std::int64_t>(random() % most); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Key> keys;
    std::int64_t total = 0, longest = 0;
    for (std::int64_t i = below(6); i >= 0; --i) {
      std::vector<std::int64_t> sizes;
      for (std::int64_t dims = below(4); dims > 0; --dims) sizes.push_back(below(9));
      keys.push_back(key_of_sizes(sizes, std::int64_t{1} << below(4)));
      total += keys.back().rows() * keys.back().row_bytes();
      longest = std::max(longest, keys.back().row_bytes());
    }
    for (int servers : {1, 2, 3, 5, 8}) {
      std::vector<std::int64_t> next(keys.size(), 0);
      for (const auto& pieces : plan_keys(keys, servers)) {
        std::int64_t bytes = 0;
        for (const Piece& piece : pieces) {
          const Key& key = keys[static_cast<std::size_t>(piece.key)];
          auto& row = next[static_cast<std::size_t>(piece.key)];
          EXPECT_EQ(piece.rows.begin, row);
          EXPECT_LT(piece.rows.begin, piece.rows.end);
          row = piece.rows.end;
          bytes += piece.rows.length() * key.row_bytes();
        }
        EXPECT_LE(bytes, total / servers + longest + 1);
      }
      for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_EQ(next[i], keys[i].row_bytes() == 0 ? 0 : keys[i].rows());
    }
  }
  EXPECT_THROW((void)plan_keys({}, 0), InvalidArgument);
}

TEST(KeyPlan, KeysTravelAsText) {
  std::vector<Key> keys{key_of_sizes({}), key_of_sizes({3, 4}), key_of_sizes({0})};
  keys[1].by_rows = true;
  keys[1].name = "layers.0.weight";
  keys[2].name = "a name, of\ntwo lines";
  const std::string text = encode_keys(keys);
  EXPECT_EQ(decode_keys(text), keys);
  EXPECT_TRUE(decode_keys("").empty());
  for (std::size_t length = 1; length < text.size(); ++length) {
    try {
      EXPECT_NE(decode_keys(text.substr(0, length)), keys);
    } catch (const Error&) {
    }
  }
  EXPECT_THROW((void)decode_keys("1 a 6 4 0 1 -3 \n"), BadInput);
  EXPECT_THROW((void)decode_keys("99 a 6 4 0 1 3 \n"), BadInput);
  EXPECT_THROW((void)decode_keys("1 a 6 4 0 2 4611686018427387904 4 \n"), InvalidArgument);
  auto difference = first_difference(keys, std::span(keys).first(1));
  EXPECT_EQ(difference.there, "nothing more");
  EXPECT_NE(difference.here.find("layers.0.weight [3, 4]"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::ps
