// Agents of two nodes meet while a process that knows the secret writes nonsense into their store.
// Each agent must end its rendezvous in time, with all nodes or with an error.
#include "launch/node_ranks.h"
#include "launch/round_store.h"
#include "launch/rounds.h"
#include "support/free_port.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <sys/stat.h>

#include <lockstep/base/error.h>
#include <lockstep/store/secret.h>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;

std::string text_to_gather(Random& random) {
  const std::string texts[] = {
      to_text(NodeClaim{.pid = 1, .mark = "x", .address = "10.0.0.7", .host = "x"}),
      to_text(RunResult{.kind = RunResult::Kind::failed, .node = 1, .how = "no"}), "--nnodes 2"};
  const std::string& text = texts[below(random, std::size(texts))];
  return one_in(random, 2) ? mutated(text, random) : text;
}

// Writes before, during or after the writes of the agents.
void disturb(int port, const std::string& secret, Random& random) {
  TcpStore store(
      {.port = static_cast<std::uint16_t>(port), .secret = secret, .connect_timeout = 500ms});
  const std::string keys[] = {round_key::agent(0), round_key::agent(1), round_key::terms,
                              round_key::result};
  for (auto count = 1 + below(random, 3); count > 0; --count) {
    std::this_thread::sleep_for(std::chrono::microseconds(below(random, 1000)));
    const std::string& key = keys[below(random, std::size(keys))];
    // Node 0 does not wait for an agent that has never joined.
    if (key == round_key::agent(1)) store.set_on_disconnect(round_key::gone(1), "");
    store.set(key, text_to_gather(random));
  }
}

TEST(Fuzz, AgentsGatherOrSayWhyNot) {
  const test::TemporaryFolder folder;
  const std::string secret_file = folder / "secret";
  std::ofstream(secret_file) << "sixteen bytes at least";
  ::chmod(secret_file.c_str(), 0600);
  const std::string secret = read_secret_file(secret_file);

  std::uint64_t gathered = 0, refused = 0;
  FuzzRounds rounds("rendezvous of nodes", 100);
  while (rounds.next()) {
    const int port = test::free_port();
    auto agent = [&](int node, std::uint64_t& came, std::uint64_t& left) {
      const NodeSpec spec{.nodes = 2,
                          .node = node,
                          .rendezvous = "127.0.0.1:" + std::to_string(port),
                          .secret_file = secret_file,
                          .join_timeout = 300ms};
      try {
        WaitingLines lines([](const std::string&) {}, false);
        const Deadline deadline = Deadline::after(spec.join_timeout);
        const Rounds joined(spec, 0, open_round_store(spec, deadline), deadline, lines);
        EXPECT_NE(joined.host(1), "unknown");
        ++came;
      } catch (const Error&) {
        ++left;
      }
    };
    std::uint64_t came[2] = {}, left[2] = {};
    const auto start = Clock::now();
    std::thread first([&] { agent(0, came[0], left[0]); });
    std::thread second([&] { agent(1, came[1], left[1]); });
    try {
      disturb(port, secret, rounds.random());
    } catch (const Error&) {  // the store has ended with its agent
    }
    first.join();
    second.join();
    EXPECT_LT(Clock::now() - start, 30s);
    gathered += came[0] + came[1];
    refused += left[0] + left[1];
  }
  EXPECT_GT(refused + gathered, 0u);
}

}  // namespace
}  // namespace lockstep::launch
