#include "sys/bounded_json.h"

#include "support/fuzz.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::sys {
namespace {

std::string json_refusal(std::string_view text, JsonLimits limits = {}) {
  try {
    (void)parse_json(text, limits);
  } catch (const NotJson& error) {
    return std::string("no JSON: ") + error.what();
  } catch (const BadInput& error) {
    return error.what();
  }
  return "was read";
}

TEST(BoundedJson, ReadsWhatIsWithinItsLimits) {
  const nlohmann::json json = parse_json(R"( {"a": [1, 2.5, "x", null, true, {"b": {}}]} )");
  EXPECT_EQ(json["a"][1], 2.5);
  EXPECT_EQ(json["a"].size(), 6u);
  const JsonLimits limits{.depth = 2, .members = 2, .values = 5};
  EXPECT_EQ(json_refusal(R"({"a":[1,2],"b":3})", limits), "was read");
  const std::string too_much = "nests too deeply or holds too much";
  EXPECT_EQ(json_refusal(R"({"a":[[1]]})", limits), too_much);
  EXPECT_EQ(json_refusal(R"({"a":1,"b":2,"c":3})", limits), too_much);
  EXPECT_EQ(json_refusal("[1,2,3,4,5]", limits), too_much);
}

TEST(BoundedJson, ATextThatIsNotOnlyJsonIsNone) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("{} {}"), std::string("{}\0", 3),
        std::string("{}\0{}", 5), std::string("\"\xff\""), std::string("[1e999]")})
    EXPECT_TRUE(json_refusal(text).starts_with("no JSON: ")) << json_refusal(text);
  EXPECT_EQ(json_refusal(std::string_view("{}\0", 3)), "no JSON: a NUL at byte 2");
  EXPECT_EQ(json_refusal("[\"\x1b[31m\n\"]").find('\x1b'), std::string::npos);
}

// Some readers take the first value, others the last.
TEST(BoundedJson, AKeyTwiceInOneObjectIsRefused) {
  EXPECT_EQ(json_refusal(R"({"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]})"), "was read");
  EXPECT_EQ(json_refusal(R"({"b":{"a":1,"\u0061":2}})"), "no JSON: has 'a' twice in one object");
}

TEST(BoundedJson, DeepTextsAreRefusedBeforeTheyTakeMemory) {
  for (const char* opened : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 5'000'000; ++i) text += opened;
    EXPECT_EQ(json_refusal(text), "nests too deeply or holds too much");
  }
}

TEST(BoundedJsonFuzz, IsReadOrRefused) {
  const std::string good = R"({"a": [1, 2.5, "x\n", null], "b": {"c": "\u00e4", "d": -7}})";
  for (test::FuzzRounds rounds("bounded JSON"); rounds.next();) {
    const std::string line = json_refusal(test::mutated(good, rounds.random()));
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_LT(line.size(), 1500u);
  }
}

}  // namespace
}  // namespace lockstep::sys
