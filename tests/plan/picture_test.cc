#include <lockstep/plan/simulation.h>

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lockstep::plan {
namespace {

std::string text(const Schedule& schedule, const PipelineTimes& times = {}, int columns = 110) {
  return text_picture(schedule, times, simulate(schedule, times), columns);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST(TextPicture, ShowsEachRankOverTime) {
  EXPECT_EQ(text(make_schedule("1f1b", {.stages = 2, .micro_batches = 2})),
            "rank 0 F0 F1 .  .  B0 -  .  B1 -\n"
            "rank 1 .  F0 B0 -  F1 B1 -  .  .\n");
  EXPECT_EQ(text(make_schedule("zbv", {.stages = 2, .micro_batches = 1})),
            "rank 0 0F0 1F0 1I0 1W0 0I0 0W0\n");
}

TEST(TextPicture, LongOnesComeInBlocks) {
  EXPECT_EQ(text(make_schedule("gpipe", {.stages = 2, .micro_batches = 2}), {}, 25),
            "from 0\n"
            "rank 0 F0 F1 .  .  .  B0\n"
            "rank 1 .  F0 F1 B0 -  B1\n"
            "\n"
            "from 6\n"
            "rank 0 -  B1 -\n"
            "rank 1 -  .  .\n");
}

TEST(TextPicture, OddTimesAreRoundedAndStaySmall) {
  const Schedule schedule = make_schedule("1f1b", {.stages = 2, .micro_batches = 2});
  EXPECT_EQ(count(text(schedule, {.stages = {{.forward = 1, .backward = 1.4}}}), "B1"), 2u);
  EXPECT_LT(text(schedule, {.stages = {{.forward = 1e-9, .backward = 1e9}}}).size(), 100000u);
  EXPECT_EQ(text(schedule, {.stages = {{0, 0, 0, 0}}}),
            "rank 0 F0 F1 B0 B1\n"
            "rank 1 F0 B0 F1 B1\n");
  EXPECT_LT(text(schedule, {}, 1).size(), 1000u);
}

TEST(SvgPicture, HasOneRectangleForEachAction) {
  for (const std::string_view name : schedule_names()) {
    Schedule schedule = make_schedule(name, {.stages = 4, .micro_batches = 4});
    schedule.name = "<\"a&b\">";
    const std::string svg = svg_picture(schedule, {}, simulate(schedule));
    std::size_t actions = 0;
    for (const auto& rank : schedule.ranks) {
      actions += rank.size();
      for (const Action& action : rank)
        EXPECT_EQ(count(svg, "<title>" + text_of(action) + ":"), 1u);
    }
    EXPECT_EQ(count(svg, "<g><title>"), actions);
    EXPECT_EQ(count(svg, "<g>"), count(svg, "</g>"));
    EXPECT_NE(svg.find("&lt;\"a&amp;b\"&gt;"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
  }
}

}  // namespace
}  // namespace lockstep::plan
