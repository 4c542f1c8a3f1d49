// Hostile input to the launcher: the messages between agents of several nodes, the store in which
// the ranks of a run meet, and the output of ranks.
#include "support/fuzz.h"
#include "launch/environment.h"
#include "launch/node_messages.h"
#include "launch/node_ranks.h"
#include "launch/output_relay.h"
#include "launch/round_store.h"
#include "launch/run_agent.h"
#include "store/hostile_talk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;

// Returns a message of the protocol, or a fragment of one.
std::string some_text(Random& random) {
  switch (below(random, 7)) {
    case 0:
      return to_text(
          NodeClaim{.pid = 41, .mark = "lockstep-6a0c", .address = "10.0.0.7", .host = "node 7"});
    case 1:
      return to_text(RunResult{});
    case 2:
      return to_text(RunResult{.kind = RunResult::Kind::stopped, .signal = 15, .node = 2});
    case 3:
      return to_text(RunResult{.kind = RunResult::Kind::failed,
                               .node = 1,
                               .exit_code = 3,
                               .rank = 4,
                               .pid = 4711,
                               .after = 5s,
                               .at = "12:00:01",
                               .how = "exit code 3",
                               .log_file = "logs/rank-4.log",
                               .last_lines = {"one", "", "three"}});
    case 4:
      return to_text(JoinRequest{.node = 3,
                                 .host = "node7",
                                 .address = "10.0.0.7",
                                 .port = 41233,
                                 .failed = true,
                                 .workers = {{"3.0", true}, {"3.7", false}}});
    case 5:
      return to_text(RoundPlan{.round = 4,
                               .restarts = 2,
                               .master_address = "10.0.0.7",
                               .master_port = 41233,
                               .nodes = {{0, "node7", {"0.1", "0.2"}}, {3, "node8", {"3.0"}}}});
    default:
      return R"({"node":99999999999999999999,"workers":[{"name":"x"}],"failed":-1})";
  }
}

// A parsed message must be unchanged after it is written and parsed again.
template <class Parse>
bool is_read_or_refused(const std::string& text, Parse parse) {
  try {
    auto found = parse(text);
    EXPECT_EQ(parse(to_text(found)), found) << text;
    return true;
  } catch (const BadInput&) {
    return false;
  }
}

TEST(Fuzz, TextsOfOtherAgentsAreReadOrRefused) {
  std::uint64_t read = 0, tried = 0;
  FuzzRounds rounds("agents' texts");
  while (rounds.next()) {
    std::string text = some_text(rounds.random());
    if (one_in(rounds.random(), 5)) text += some_text(rounds.random());
    if (!one_in(rounds.random(), 8)) text = mutated(text, rounds.random());
    read += is_read_or_refused(text, parse_node_claim);
    read += is_read_or_refused(text, parse_run_result);
    read += is_read_or_refused(text, parse_join_request);
    read += is_read_or_refused(text, parse_round_plan);
    tried += 4;
    if (tried % 400 == 0) {
      RoundPlan many{.master_address = "x", .nodes = {}};
      for (int node = 0; node < 2 * most_nodes; ++node) many.nodes.push_back({node, "x", {"0.0"}});
      EXPECT_FALSE(is_read_or_refused(to_text(many), parse_round_plan));
      EXPECT_FALSE(is_read_or_refused(std::string(most_text_bytes + 1, 'x'), parse_node_claim));
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(read, tried / 100);
  EXPECT_LT(read, tried / 2);
}

TEST(Fuzz, RanksMeetThoughOutsidersTalkToTheirStore) {
  const RoundStore store = serve_store();
  auto descriptor = store.secret_descriptor();
  std::string secret(rank_env::secret_bytes, '\0');
  ASSERT_EQ(::pread(descriptor.get(), secret.data(), secret.size(), 0), std::ssize(secret));
  const std::string& address = store.address;
  auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));

  store::Outsiders outsiders(port, secret);
  auto rank = open_store(address, secret, 20s);
  std::int64_t count = 0;
  FuzzRounds rounds("outsiders of a run");
  while (rounds.next()) {
    outsiders.talk(rounds.random());
    EXPECT_EQ(rank->add("joined", 1), ++count);
  }
  EXPECT_EQ(open_store(address, secret, 20s)->add("joined", 0), count);
}

std::string some_output(Random& random) {
  const std::vector<std::string> pieces{"line\n",
                                        "\r 50%",
                                        "no end",
                                        "\r\n",
                                        "\x1b[31mred",
                                        "\xff\xfe",
                                        "\n\n\n",
                                        std::string("\0nul\n", 5),
                                        rank_env::failure_mark,
                                        "\xe2\x82",
                                        "| ",
                                        std::string(700, 'x') + "\n",
                                        rank_env::flight_record_mark};
  std::string text;
  for (auto count = below(random, 6); count > 0; --count)
    text += pieces[below(random, pieces.size())];
  return one_in(random, 2) ? mutated(text, random) : text;
}

// Every line on the terminal must begin with the rank that printed it.
void expect_marked_lines(const std::string& text) {
  bool at_start = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (at_start) EXPECT_EQ(text.substr(i, 6), "[rank ") << "at " << i;
    bool half = text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    at_start = (text[i] == '\n' || text[i] == '\r') && !half;
  }
}

TEST(Fuzz, WhateverRanksPrintIsShownUnderTheirNumber) {
  FuzzRounds rounds("output of ranks");
  while (rounds.next()) {
    const Screen screen;
    Sink sink(screen.descriptor());
    OpenLine open;
    Printer printer(sink, open, PrefixStyle::rank);
    LastLines last;
    for (int i = 0; i < 20; ++i) {
      int stream = static_cast<int>(below(rounds.random(), 4));
      std::string text = some_output(rounds.random());
      if (text.ends_with('\r')) text.pop_back();  // held back, see unfinished()
      EXPECT_LE(unfinished(text), text.size());
      printer.print(stream, stream / 2, text);
      last.add(stream, text);
    }
    expect_marked_lines(screen.text());
    auto lines = last.lines(30);
    EXPECT_LE(lines.size(), 30u);
    for (const std::string& line : lines) {
      EXPECT_LE(line.size(), 503u);
      auto is_control = [](unsigned char c) { return (c < 32 && c != '\t') || c == 127; };
      EXPECT_EQ(std::ranges::count_if(line, is_control), 0);
    }
  }
}

}  // namespace
}  // namespace lockstep::launch
