// Messages of agents: the parsers accept what the agents write, and nothing else.
#include "launch/node_messages.h"

#include "launch/node_ranks.h"
#include "support/messages.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::expect_words;
using test::message_of;

const NodeClaim claim{.pid = 41, .mark = "lockstep-6a", .address = "fe80::1", .host = "node 7"};
const RunResult failed{.kind = RunResult::Kind::failed,
                       .node = 1,
                       .exit_code = 137,
                       .rank = 5,
                       .pid = 77,
                       .after = 1500ms,
                       .at = "12:00:01",
                       .how = "killed by signal 9 (SIGKILL)",
                       .log_file = "logs/rank 5.log",
                       .last_lines = {"Traceback", "", "\tValueError: \xc3\xa9"}};

TEST(NodeMessages, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_node_claim(to_text(claim)), claim);
  EXPECT_EQ(parse_run_result(to_text(failed)), failed);
  EXPECT_EQ(parse_run_result(to_text(RunResult{})), RunResult{});
  const RunResult stopped{.kind = RunResult::Kind::stopped, .signal = 15, .node = 2};
  EXPECT_EQ(parse_run_result(to_text(stopped)), stopped);
  const RunResult of_agent{.kind = RunResult::Kind::failed, .node = 1, .how = "it has gone"};
  EXPECT_EQ(parse_run_result(to_text(of_agent)), of_agent);
}

TEST(NodeMessages, TheTextsAreAsTheHeaderSays) {
  EXPECT_EQ(to_text(claim),
            R"({"address":"fe80::1","host":"node 7","mark":"lockstep-6a","pid":41})");
  EXPECT_EQ(to_text(failed),
            R"x({"at":"12:00:01","exit_code":137,"how":"killed by signal 9 (SIGKILL)","kind":2,)x"
            R"("last_lines":["Traceback","","\tValueError: é"],"log_file":"logs/rank 5.log",)"
            R"("nanoseconds":1500000000,"node":1,"pid":77,"rank":5,"signal":0})");
  const RoundPlan plan{.round = 3,
                       .restarts = 1,
                       .master_address = "10.0.0.7",
                       .master_port = 41233,
                       .nodes = {{2, "node7", {"2.0", "2.5"}}}};
  EXPECT_EQ(
      to_text(plan),
      R"({"master_address":"10.0.0.7","master_port":41233,)"
      R"("nodes":[{"host":"node7","node":2,"workers":["2.0","2.5"]}],"restarts":1,"round":3})");
}

TEST(NodeMessages, WhatWritersAreGivenIsMadeFit) {
  RunResult wild = failed;
  wild.how = "a\nfailed 0 0 0 0 0\x1b[31m" + std::string(10'000, 'x');
  wild.last_lines.assign(1000, std::string(5000, 'y') + "\n\n");
  const RunResult read = parse_run_result(to_text(wild));
  EXPECT_TRUE(read.how.starts_with("a\\nfailed 0 0 0 0 0\\x1b[31mxxx")) << read.how.substr(0, 50);
  EXPECT_EQ(read.last_lines.size(), 100u);
  EXPECT_LT(to_text(wild).size(), most_text_bytes);
}

// Returns `text` with the first `before` replaced.
std::string with(std::string text, const std::string& before, const std::string& after) {
  return text.replace(text.find(before), before.size(), after);
}

TEST(NodeMessages, AnythingElseIsBadInputThatSaysWhere) {
  const auto of_claim = [&](const std::string& text) {
    return message_of<BadInput>([&] { (void)parse_node_claim(text); });
  };
  const std::string good = to_text(claim);
  expect_words(of_claim(""), {"the claim of another agent", "''"});
  expect_words(of_claim(with(good, "41", "-1")), {"pid", "from 0 to 2147483647", "found -1"});
  expect_words(of_claim(with(good, "41", "1.5")), {"pid", "found 1.5"});
  expect_words(of_claim(with(good, "\"host\"", "\"hosts\"")), {"'host' not found"});
  expect_words(of_claim(with(good, "\"node 7\"", "7")), {"must be string"});
  expect_words(of_claim(good + " "), {"the text of an agent"});
  expect_words(of_claim(with(good, "\"pid\":41", "\"pid\":41,\"x\":0")), {"the text of an agent"});
  expect_words(of_claim(with(good, "node 7", "\\u001b[2J")), {"the text of an agent"});
  expect_words(of_claim(with(good, "node 7", std::string(most_line_bytes, 'x'))),
               {"the text of an agent"});
  expect_words(of_claim("[]"), {"array"});
  expect_words(of_claim("\x1b[2J"), {"'\\x1b[2J'"});
  expect_words(of_claim(std::string(most_text_bytes + 1, 'x')), {"at most 4194304 bytes"});
  const auto of_run_result = [&](const std::string& before, const std::string& after) {
    return message_of<BadInput>(
        [&] { (void)parse_run_result(with(to_text(failed), before, after)); });
  };
  expect_words(of_run_result("137", "256"), {"exit_code", "0 to 255"});
  expect_words(of_run_result("\"rank\":5", "\"rank\":-2"), {"rank", "-1 to"});
  expect_words(of_run_result("\"node\":1", "\"node\":-1"), {"rank", "-1 to -1, found 5"});
  expect_words(of_run_result("\"kind\":2", "\"kind\":1"), {"signal", "1 to 64"});
  expect_words(of_run_result("\"kind\":2", "\"kind\":3"), {"kind", "0 to 2"});
  expect_words(of_run_result("1500000000", "9223372036854775808"), {"nanoseconds"});
}

// For any text, a parser returns or throws BadInput; a returned message can be written and parsed
// again.
TEST(NodeMessages, MutatedTextsAreReadOrRefused) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  const std::vector<std::string> texts{
      to_text(claim), to_text(failed),
      to_text(RunResult{.kind = RunResult::Kind::stopped, .signal = 2})};
  int read = 0, refused = 0;
  for (int round = 0; round < 10'000; ++round) {
    std::string text = texts[below(texts.size())];
    for (std::size_t i = 0, changes = 1 + below(3); i < changes; ++i) {
      const std::size_t place = below(text.size() + 1);
      switch (below(4)) {
        case 0:
          if (place < text.size()) text[place] = static_cast<char>(below(256));
          break;
        case 1:
          text.resize(place);
          break;
        case 2:
          text += text.substr(place);
          break;
        default:
          text.insert(place, 1, "\" 9-,"[below(5)]);
      }
    }
    for (const auto& parse : std::vector<std::function<void()>>{
             [&] {
               EXPECT_EQ(parse_node_claim(to_text(parse_node_claim(text))), parse_node_claim(text));
             },
             [&] {
               EXPECT_EQ(parse_run_result(to_text(parse_run_result(text))), parse_run_result(text));
             }}) {
      try {
        parse();
        ++read;
      } catch (const BadInput&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 200);
  EXPECT_GT(refused, 1000);
}

JoinRequest request_of(int node, int first_worker, int workers, bool kept = false) {
  JoinRequest request{.node = node,
                      .host = "host" + std::to_string(node),
                      .address = "10.0.0." + std::to_string(node),
                      .port = 40000 + node};
  for (int i = 0; i < workers; ++i)
    request.workers.push_back(
        {std::to_string(node) + "." + std::to_string(first_worker + i), kept});
  return request;
}

std::vector<int> nodes_of(const RoundPlan& plan) {
  std::vector<int> nodes;
  for (const auto& node : plan.nodes) nodes.push_back(node.node);
  return nodes;
}

TEST(RoundPlan, TheFirstRoundHasItsNodesInTheOrderInWhichTheyCame) {
  const RoundPlan plan = plan_round(nullptr, {request_of(2, 0, 1), request_of(0, 0, 2)});
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
      plan_round(nullptr, {request_of(0, 0, 1), request_of(1, 0, 1), request_of(2, 0, 1)});
  const RoundPlan plan = plan_round(&last, {request_of(2, 1, 1), request_of(0, 1, 1)});
  EXPECT_EQ(nodes_of(plan), (std::vector<int>{0, 2}));
  EXPECT_EQ(plan.round, 1);
  EXPECT_EQ(plan.restarts, 0) << "no worker has failed";
}

TEST(RoundPlan, ANewNodeTakesThePlaceOfOneThatHasLeftSoThatSurvivorsKeepTheirRanks) {
  const RoundPlan last =
      plan_round(nullptr, {request_of(0, 0, 2), request_of(1, 0, 2), request_of(2, 0, 2)});
  const RoundPlan same =
      plan_round(&last, {request_of(0, 2, 2), request_of(2, 2, 2), request_of(3, 0, 2)});
  EXPECT_EQ(nodes_of(same), (std::vector<int>{0, 3, 2}));
  const RoundPlan other =
      plan_round(&last, {request_of(0, 2, 2), request_of(2, 2, 2), request_of(3, 0, 1)});
  EXPECT_EQ(nodes_of(other), (std::vector<int>{0, 2, 3})) << "it does not fit";
  EXPECT_EQ(other.ranks(), 5);
}

TEST(RoundPlan, SeveralFailuresOfOneRoundAreOneRestart) {
  const RoundPlan last = plan_round(nullptr, {request_of(0, 0, 1), request_of(1, 0, 1)});
  std::vector<JoinRequest> requests{request_of(0, 1, 1), request_of(1, 1, 1)};
  for (JoinRequest& request : requests) request.failed = true;
  EXPECT_EQ(plan_round(&last, requests).restarts, 1);
}

TEST(RoundPlan, TextsComeBackAsTheyWere) {
  JoinRequest request = request_of(7, 3, 3, true);
  request.failed = true;
  request.workers[1].survives = false;
  EXPECT_EQ(parse_join_request(to_text(request)), request);
  const RoundPlan plan = plan_round(nullptr, {request_of(2, 0, 1), request_of(0, 0, 2)});
  EXPECT_EQ(parse_round_plan(to_text(plan)), plan);
}

TEST(RoundPlan, TextsThatNoAgentWroteAreRefused) {
  const std::string request = to_text(request_of(1, 0, 2));
  const std::string plan = to_text(plan_round(nullptr, {request_of(0, 0, 1), request_of(1, 0, 1)}));
  for (std::size_t size = 0; size < request.size(); ++size)
    EXPECT_THROW((void)parse_join_request(request.substr(0, size)), BadInput) << size;
  for (std::size_t size = 0; size < plan.size(); ++size)
    EXPECT_THROW((void)parse_round_plan(plan.substr(0, size)), BadInput) << size;
  expect_words(message_of<BadInput>([&] { (void)parse_join_request(plan); }),
               {"the join request of another agent", "'node' not found"});
  expect_words(message_of<BadInput>([&] { (void)parse_join_request(with(request, "1.0", "1")); }),
               {"a worker's name, found '1'"});
  EXPECT_THROW((void)parse_join_request(with(request, "false", "0")), BadInput);
  expect_words(message_of<BadInput>([&] { (void)parse_round_plan(with(plan, "\"0.0\"", "")); }),
               {"1 to 10000 workers, found 0"});
}

}  // namespace
}  // namespace lockstep::launch
