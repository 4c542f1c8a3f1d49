// Agents of nodes that may join and leave, and the output of their ranks.
#pragma once

#include "launch/run_nodes.h"

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace lockstep::launch {

// Node 0 serves the store; `script` runs with the folder as $1.
inline std::vector<WorkerSpec> elastic_nodes(int nodes, int least, int ranks,
                                             const std::string& script,
                                             const test::TemporaryFolder& folder) {
  const auto port = test::free_port();
  std::vector<WorkerSpec> specs;
  for (int node = 0; node < nodes; ++node) {
    WorkerSpec spec = node_spec(nodes, node, port, ranks, script);
    spec.arguments.insert(spec.arguments.end(), {"sh", folder.path().string()});
    spec.prefix = PrefixStyle::none;
    spec.nodes.least_nodes = least;
    spec.nodes.last_call = std::chrono::seconds(10);  // long enough for all nodes to join
    specs.push_back(spec);
  }
  return specs;
}

inline std::multiset<std::string> lines_of(const std::vector<NodeRan>& nodes) {
  std::multiset<std::string> lines;
  for (const NodeRan& node : nodes) lines.merge(lines_of(node.output));
  return lines;
}

inline std::size_t count(const std::vector<NodeRan>& nodes, const std::string& line) {
  return lines_of(nodes).count(line);
}

inline constexpr const char* where =
    "echo $LOCKSTEP_ROUND: $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT; ";

}  // namespace lockstep::launch
