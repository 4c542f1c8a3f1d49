// Compares the simulator with the closed forms of the papers, for pipelines of 2 to 64 ranks.
#include "support/messages.h"

#include <lockstep/base/error.h>
#include <lockstep/plan/simulation.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

namespace lockstep::plan {
namespace {

using test::message_of;

constexpr StageTimes equal{.forward = 1, .backward = 2, .input = 1, .weight = 1};
constexpr StageTimes uneven{.forward = 1.1, .backward = 2.3, .input = 1.4, .weight = 0.9};

Simulation of(std::string_view name, int stages, int micro_batches, const StageTimes& times) {
  return simulate(make_schedule(name, {.stages = stages, .micro_batches = micro_batches}),
                  {.stages = {times}});
}

class ClosedForms : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] int p() const { return GetParam(); }
  // For long pipelines, tests only the smallest number, because there are many such pipelines.
  [[nodiscard]] std::vector<int> micro_batches(int least) const {
    if (p() > 12) return {least};
    return {least, least + p(), 4 * least};
  }
};

TEST_P(ClosedForms, GPipeAnd1F1BHaveTheSameBubble) {
  for (const StageTimes& times : {equal, uneven})
    for (const int m : p() > 12 ? std::vector{p()} : std::vector{1, 2, p(), 2 * p() + 1, 4 * p()})
      for (const char* name : {"gpipe", "1f1b"}) {
        const Simulation found = of(name, p(), m, times);
        EXPECT_NEAR(found.bubble(), (p() - 1.0) / (m + p() - 1), 1e-12) << name << " " << m;
        EXPECT_NEAR(found.total(), (m + p() - 1) * (times.forward + times.backward), 1e-8);
        EXPECT_EQ(found.peak_activations(), name[0] == 'g' ? m : std::min(m, p()));
      }
}

TEST_P(ClosedForms, InterleavingDividesTheBubbleByTheChunks) {
  for (const int v : p() > 12 ? std::vector{2} : std::vector{2, 3})
    for (const int m : micro_batches(p())) {
      // If a rank has v stages, each of them is v times shorter.
      const StageTimes times{.forward = 1.0 / v, .backward = 2.0 / v};
      const Simulation found = simulate(
          make_schedule("interleaved", {.stages = v * p(), .chunks = v, .micro_batches = m}),
          {.stages = {times}});
      EXPECT_NEAR(found.longest().idle(), (p() - 1) * 3.0 / v, 1e-8);
      EXPECT_NEAR(found.bubble(), (p() - 1.0) / v / (m + (p() - 1.0) / v), 1e-10);
      EXPECT_NEAR(found.longest().idle(), of("1f1b", p(), m, equal).longest().idle() / v, 1e-8);
    }
}

TEST_P(ClosedForms, ZBH1HasAThirdOfTheBubbleOf1F1BAndItsMemory) {
  for (const int m : micro_batches(p())) {
    const double found = of("zb-h1", p(), m, equal).longest().idle();
    EXPECT_NEAR(found, of("1f1b", p(), m, equal).longest().idle() / 3, 1e-8) << m;
    const StageTimes& t = uneven;
    EXPECT_NEAR(of("zb-h1", p(), m, t).longest().idle(),
                (p() - 1) * (t.forward + t.input - t.weight), 1e-7);
    for (const RankSimulation& rank : of("zb-h1", p(), m, t).ranks)
      EXPECT_EQ(rank.peak_activations, p());
  }
}

TEST_P(ClosedForms, ZBVHasNoBubbleAndTheMemoryOf1F1B) {
  for (const int m : micro_batches(2 * p() - 1)) {
    const Simulation found = of("zbv", 2 * p(), m, equal);
    EXPECT_NEAR(found.bubble(), 0, 1e-12) << m;
    for (const RankSimulation& rank : found.ranks) {
      EXPECT_NEAR(rank.idle(), 0, 1e-8);
      EXPECT_EQ(rank.peak_activations, 2 * p());  // each of half the size
    }
    EXPECT_NEAR(found.total(), 6 * m + p() - 1, 1e-8);
  }
}

// arXiv:2412.19437, table 2, for a V on half as many ranks: 2p + 1 activations, and at most (p -
// 1)(F&B + B - 3W), where F&B is a forward followed by a backward.
TEST_P(ClosedForms, DualPipeVStaysBelowItsPublishedBubble) {
  for (const int m : micro_batches(2 * p())) {
    const Simulation found = of("dualpipev", 2 * p(), m, equal);
    EXPECT_NEAR(found.longest().idle(), p() - 1, 1e-8);
    EXPECT_LE(found.longest().idle(), 2 * (p() - 1));
    for (const RankSimulation& rank : found.ranks) EXPECT_EQ(rank.peak_activations, 2 * p() + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClosedForms, testing::Range(2, 65));

TEST(Simulation, OneRankNeverWaits) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) EXPECT_EQ(of(name, 1, 5, uneven).bubble(), 0);
  for (const char* name : {"interleaved", "zbv", "dualpipev"})
    EXPECT_EQ(of(name, 2, 5, uneven).bubble(), 0);
}

TEST(Simulation, CommunicationDelaysWhatAnotherRankNeeds) {
  const Schedule schedule = make_schedule("1f1b", {.stages = 2, .micro_batches = 1});
  const Simulation found = simulate(schedule, {.communication = 0.25});
  EXPECT_EQ(found.starts, (std::vector<std::vector<double>>{{0, 4.5}, {1.25, 2.25}}));
  EXPECT_EQ(found.total(), 6.5);
  // There is no communication between stages of one rank.
  const Schedule alone = make_schedule("zbv", {.stages = 2, .micro_batches = 1});
  EXPECT_EQ(simulate(alone, {.communication = 0.25}).total(), 6);
}

TEST(Simulation, EachStageMayHaveTimesOfItsOwn) {
  const Schedule schedule = make_schedule("gpipe", {.stages = 2, .micro_batches = 2});
  const Simulation found = simulate(
      schedule, {.stages = {{.forward = 1, .backward = 1}, {.forward = 3, .backward = 5}}});
  EXPECT_EQ(found.starts, (std::vector<std::vector<double>>{{0, 1, 12, 17}, {1, 4, 7, 12}}));
  EXPECT_EQ(found.ranks[0].busy, 4);
  EXPECT_EQ(found.ranks[0].idle(), 14);
  EXPECT_EQ(found.ranks[1].idle(), 0);
  EXPECT_EQ(found.bubble(), 14.0 / 18);
}

TEST(Simulation, TimesThatCannotBeAreOneLine) {
  const Schedule schedule = make_schedule("gpipe", {.stages = 3, .micro_batches = 2});
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              (void)simulate(schedule, {.stages = {{}, {}}});
            }),
            "simulate: expected times of one stage or of all 3, found 2");
  EXPECT_EQ(
      message_of<InvalidArgument>([&] { (void)simulate(schedule, {.stages = {{.input = -1}}}); }),
      "simulate: time of I: expected at least 0, found -1");
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              (void)simulate(schedule, {.communication = std::numeric_limits<double>::quiet_NaN()});
            }),
            "simulate: time of communication: expected at least 0, found nan");
}

TEST(Simulation, ActionsThatTakeNoTimeAreFine) {
  const Schedule schedule = make_schedule("zb-h1", {.stages = 3, .micro_batches = 2});
  const Simulation found = simulate(schedule, {.stages = {{0, 0, 0, 0}}});
  EXPECT_EQ(found.total(), 0);
  EXPECT_EQ(found.bubble(), 0);
}

}  // namespace
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
