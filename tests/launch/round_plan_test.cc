#include "launch/node_messages.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/messages.h"

namespace lockstep::launch {
namespace {

Offer offer_of(int node, int first_worker, int workers, bool kept = false) {
  Offer offer{.node = node,
              .host = "host" + std::to_string(node),
              .address = "10.0.0." + std::to_string(node),
              .port = 40000 + node};
  for (int i = 0; i < workers; ++i)
    offer.workers.push_back({std::to_string(node) + "." + std::to_string(first_worker + i), kept});
  return offer;
}

std::vector<int> nodes_of(const RoundPlan& plan) {
  std::vector<int> nodes;
  for (const auto& node : plan.nodes) nodes.push_back(node.node);
  return nodes;
}

TEST(RoundPlan, TheFirstRoundHasItsNodesInTheOrderInWhichTheyCame) {
  const RoundPlan plan = plan_round(nullptr, {offer_of(2, 0, 1), offer_of(0, 0, 2)});
  EXPECT_EQ(plan.round, 0);
  EXPECT_EQ(plan.restarts, 0);
  EXPECT_EQ(nodes_of(plan), (std::vector<int>{0, 2}));
  EXPECT_EQ(plan.ranks(), 3);
  EXPECT_EQ(plan.first_rank(1), 2);
  EXPECT_EQ(plan.group_rank(2), 1);
  EXPECT_EQ(plan.group_rank(1), -1);
  EXPECT_EQ(plan.master_address, "10.0.0.0");
  EXPECT_EQ(plan.master_port, 40000);
  EXPECT_EQ(workers_text(plan), "0 0.0 0 0 2 host0\n1 0.1 0 1 2 host0\n2 2.0 1 0 1 host2\n");
}

TEST(RoundPlan, ANodeThatLeavesMakesTheOthersCloseUp) {
  const RoundPlan last =
      plan_round(nullptr, {offer_of(0, 0, 1), offer_of(1, 0, 1), offer_of(2, 0, 1)});
  const RoundPlan plan = plan_round(&last, {offer_of(2, 1, 1), offer_of(0, 1, 1)});
  EXPECT_EQ(nodes_of(plan), (std::vector<int>{0, 2}));
  EXPECT_EQ(plan.round, 1);
  EXPECT_EQ(plan.restarts, 0) << "no worker has failed";
}

TEST(RoundPlan, ANewNodeTakesThePlaceOfOneThatHasLeftSoThatSurvivorsKeepTheirRanks) {
  const RoundPlan last =
      plan_round(nullptr, {offer_of(0, 0, 2), offer_of(1, 0, 2), offer_of(2, 0, 2)});
  const RoundPlan same =
      plan_round(&last, {offer_of(0, 2, 2), offer_of(2, 2, 2), offer_of(3, 0, 2)});
  EXPECT_EQ(nodes_of(same), (std::vector<int>{0, 3, 2}));
  const RoundPlan other =
      plan_round(&last, {offer_of(0, 2, 2), offer_of(2, 2, 2), offer_of(3, 0, 1)});
  EXPECT_EQ(nodes_of(other), (std::vector<int>{0, 2, 3})) << "it does not fit";
  EXPECT_EQ(other.ranks(), 5);
}

TEST(RoundPlan, SeveralFailuresOfOneRoundAreOneRestart) {
  const RoundPlan last = plan_round(nullptr, {offer_of(0, 0, 1), offer_of(1, 0, 1)});
  std::vector<Offer> offers{offer_of(0, 1, 1), offer_of(1, 1, 1)};
  for (Offer& offer : offers) offer.failed = true;
  EXPECT_EQ(plan_round(&last, offers).restarts, 1);
}

TEST(RoundPlan, TextsComeBackAsTheyWere) {
  Offer offer = offer_of(7, 3, 3, true);
  offer.failed = true;
  offer.workers[1].kept = false;
  EXPECT_EQ(parse_offer(to_text(offer)), offer);
  const RoundPlan plan = plan_round(nullptr, {offer_of(2, 0, 1), offer_of(0, 0, 2)});
  EXPECT_EQ(parse_round_plan(to_text(plan)), plan);
}

TEST(RoundPlan, TextsThatNoAgentWroteAreRefused) {
  const std::string offer = to_text(offer_of(1, 0, 2));
  const std::string plan = to_text(plan_round(nullptr, {offer_of(0, 0, 1), offer_of(1, 0, 1)}));
  for (std::size_t size = 0; size < offer.size(); ++size) {
    const std::string part = offer.substr(0, size);
    if (part.ends_with("new\n")) continue;  // an offer of fewer workers
    EXPECT_THROW((void)parse_offer(part), BadInput) << part;
  }
  for (std::size_t size = 0; size < plan.size(); ++size) {
    const std::string part = plan.substr(0, size);
    if (part.ends_with("worker 0.0\n")) continue;
    EXPECT_THROW((void)parse_round_plan(part), BadInput) << part;
  }
  EXPECT_NE(test::message_of<BadInput>([&] { (void)parse_offer(plan); }).find("lockstep-offer 1"),
            std::string::npos);
  EXPECT_THROW((void)parse_offer(offer + "worker 1 new\n"), BadInput);
  EXPECT_THROW((void)parse_offer(offer + "worker 1.2 old\n"), BadInput);
}

}  // namespace
}  // namespace lockstep::launch
