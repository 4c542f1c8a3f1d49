#include "launch/agent.h"

#include "base/check.h"
#include "base/text.h"
#include "launch/agents_store.h"
#include "launch/node_messages.h"
#include "launch/run.h"

#include <chrono>

namespace lockstep::launch {

namespace {

void check_rounds(const WorkerSpec& spec) {
  const NodeSpec& nodes = spec.nodes;
  check_input(nodes.least_nodes >= 0 && nodes.least_nodes <= nodes.nodes,
              "least number of nodes: expected at most {}, found {}", nodes.nodes,
              nodes.least_nodes);
  check_input(spec.max_restarts >= 0, "number of restarts: expected 0 or more, found {}",
              spec.max_restarts);
  check_input(spec.reserve >= 0, "number of processes in reserve: expected 0 or more, found {}",
              spec.reserve);
  check_input(spec.hung_after >= Duration::zero(),
              "time until a silent rank has hung: expected 0 seconds or more");
  check_input(nodes.last_call >= Duration::zero(), "last call: expected 0 seconds or more");
}

void check_nodes(const WorkerSpec& spec) {
  const NodeSpec& nodes = spec.nodes;
  check_input(nodes.nodes >= 1 && nodes.nodes <= most_nodes,
              "number of nodes: expected 1 to {}, found {}", most_nodes, nodes.nodes);
  check_input(nodes.node >= 0 && (nodes.node < nodes.nodes || has_rounds(spec)),
              "number of this node: expected 0 to {}, found {}", nodes.nodes - 1, nodes.node);
  if (nodes.nodes == 1 && nodes.store.empty()) return;
  check_input(spec.ranks <= most_ranks_of_a_node, "number of ranks: expected at most {}, found {}",
              most_ranks_of_a_node, spec.ranks);
  static_cast<void>(endpoint_of(nodes));
  check_input(spec.store_port == 0,
              "port of the store: several nodes have theirs at the rendezvous");
  check_input(nodes.join_timeout > Duration::zero(),
              "time for the nodes to come: expected more than 0 seconds");
  check_input(nodes.lost_after >= std::chrono::seconds(3),
              "time until a silent node is lost: expected 3 seconds or more, found {}",
              format_duration(nodes.lost_after));
}

WorkerSpec checked(WorkerSpec spec) {
  check_input(spec.ranks >= 1, "number of ranks: expected at least 1, found {}", spec.ranks);
  check_input(!spec.program.empty(), "no program to run was named");
  check_input(spec.grace >= Duration::zero() && spec.failure_grace >= Duration::zero(),
              "grace period: expected 0 seconds or more");
  check_input(spec.store_port >= 0 && spec.store_port <= 65535,
              "port of the store: expected 0 to 65535, found {}", spec.store_port);
  check_rounds(spec);
  check_nodes(spec);
  return spec;
}

}  // namespace

Agent::Agent(WorkerSpec spec) : run_(std::make_unique<Run>(checked(std::move(spec)))) {}

Agent::~Agent() = default;

AgentResult Agent::run() { return run_->run(); }

void Agent::deliver(int signal) noexcept { run_->deliver(signal); }

}  // namespace lockstep::launch
