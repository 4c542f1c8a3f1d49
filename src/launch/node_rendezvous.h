// How the agents of several nodes find each other and agree on who is who.
//
// Node 0 serves the store. Keys, under "lockstep-run/", texts as in node_messages.h:
//   nodes/K   hello of node K; the first agent that writes it is node K
//   node-list the list of nodes, from node 0, when all have come; or why there will be no run. An
//             agent that sees a mistake first may refuse; the first text stands
//   result    how the run ended, from the agent that saw it first
//   heartbeat/K   a number that the agent of node K raises again and again while it lives
//   done      how many nodes' ranks have all ended well
//   left/K    node K's agent needs the store no more
// Each agent leaves values with the store for the end of its connection: should its connection end,
// the node list is refused (if there is none yet), the run has failed (if there is no run result),
// and it has left.
#pragma once

#include "launch/agent.h"
#include "launch/node_messages.h"
#include "launch/waiting_lines.h"

#include <lockstep/base/deadline.h>
#include <lockstep/store/store_server.h>
#include <lockstep/store/tcp_store.h>

#include <chrono>
#include <memory>
#include <string>

namespace lockstep::launch {

namespace key {
inline constexpr const char* node_list = "lockstep-run/node-list";
inline constexpr const char* run_result = "lockstep-run/result";
inline constexpr const char* done = "lockstep-run/done";
[[nodiscard]] std::string heartbeat(int number);
[[nodiscard]] std::string node(int number);
[[nodiscard]] std::string left(int number);
}  // namespace key

struct NodeRendezvous {
  std::unique_ptr<StoreServer> server;  // node 0's
  std::shared_ptr<TcpStore> store;
  std::string store_address;  // "tcp://HOST:PORT", as the ranks of this node know it
  std::string secret;
  NodeList node_list;
};

// Blocks until all nodes have come, and keeps `lines` told for whom it waits. BadInput: the port is
// in use or not this machine's, the secret is missing or another, two agents say that they are the
// same node, or have not been told the same number of nodes. Timeout names the nodes that did not
// come. PeerLost: node 0 left.
[[nodiscard]] NodeRendezvous join_rendezvous(const NodeSpec& spec, int ranks, WaitingLines& lines);

// What node 0 gives them before it takes the store away.
inline constexpr std::chrono::seconds time_to_read{3};

// Waits, as node 0, until the agents that have come need the store no more. False when the deadline
// came first. At once elsewhere, and where the store is lost.
bool wait_for_the_others(Store& store, const NodeSpec& spec, Deadline deadline);

}  // namespace lockstep::launch
