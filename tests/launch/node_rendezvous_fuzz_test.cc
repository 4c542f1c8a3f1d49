// Agents of two nodes that come together while a process that knows the secret writes nonsense into
// their store: each of them ends its rendezvous, with a node list or with an error, in time.
#include "launch/node_rendezvous.h"
#include "support/free_port.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  const std::string hello = to_text(Hello{.nodes = static_cast<int>(1 + below(random, 3)),
                                          .ranks = 1,
                                          .host = "x",
                                          .address = "10.0.0.7",
                                          .agent = "1 x"});
  std::vector<NodeList::Node> nodes(1 + below(random, 3), {1, "x"});
  const std::string node_list = to_text(NodeList{.refused = one_in(random, 2) ? "no" : "",
                                                 .run_id = "lockstep-1",
                                                 .master_address = "10.0.0.7",
                                                 .master_port = 1,
                                                 .nodes = std::move(nodes)});
  std::string text = one_in(random, 2) ? hello : node_list;
  return one_in(random, 2) ? mutated(text, random) : text;
}

// Writes before the agents do, beside them or after them.
void disturb(int port, const std::string& secret, Random& random) {
  TcpStore store(
      {.port = static_cast<std::uint16_t>(port), .secret = secret, .connect_timeout = 500ms});
  store.set(key::left(1), "");  // an agent that leaves waits for no reader
  const std::string keys[] = {key::node(0), key::node(1), key::node_list, key::run_result};
  for (auto count = 1 + below(random, 3); count > 0; --count) {
    std::this_thread::sleep_for(std::chrono::microseconds(below(random, 1000)));
    store.set(keys[below(random, std::size(keys))], text_to_gather(random));
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
        auto rendezvous = join_rendezvous(spec, 1, lines);
        EXPECT_EQ(rendezvous.node_list.nodes.size(), 2u);
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
    } catch (const Error&) {  // the store has gone with its agent
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
