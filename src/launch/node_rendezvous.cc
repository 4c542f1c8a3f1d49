#include "launch/node_rendezvous.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/agents_store.h"
#include "launch/rendezvous_endpoint.h"
#include "launch/rendezvous_store.h"
#include "sys/own_address.h"
#include "sys/topology.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::milliseconds look_again{500};  // which nodes have come, which have refused
constexpr std::chrono::seconds decision_timeout{
    10};  // beyond the deadline of node 0, which decides

Hello own_hello(const NodeSpec& spec, int ranks, const TcpStore& store) {
  return {.nodes = spec.nodes,
          .ranks = ranks,
          .host = sys::host_name(),
          .address = store.own_address(),
          .agent = formatted("{} {}", ::getpid(), fresh_run_id())};
}

// One agent's part in the talk.
class Talk {
 public:
  Talk(const NodeSpec& spec, Store& store, Deadline deadline, WaitingLines& lines)
      : spec_(spec), store_(store), deadline_(deadline), lines_(lines) {}

  void introduce(TcpStore& store, const Hello& hello) {
    const std::string text = to_text(hello);
    const std::string stands = store_.compare_set(key::node(spec_.node), "", text);
    if (stands != text) {
      const Hello other = parse_hello(stands);
      throw BadInput(formatted("another agent is node {} already: pid {} on host {}", spec_.node,
                               other.agent.substr(0, other.agent.find(' ')), other.host));
    }
    const std::string who = formatted("node {} (host {})", spec_.node, hello.host);
    store.set_on_disconnect(key::node_list,
                            to_text(NodeList{.refused = who + " left before the run began"}));
    store.set_on_disconnect(
        key::run_result,
        to_text(RunResult{.kind = RunResult::Kind::failed,
                          .node = spec_.node,
                          .how = "its agent has gone without a word: it was killed, or its machine "
                                 "cannot be reached"}));
    store.set_on_disconnect(key::left(spec_.node), "");
  }

  // What node 0 was told, compared with what this agent was.
  void compare_with_node_0() {
    const Hello first = parse_hello(store_.get(key::node(0), deadline_));
    if (first.nodes != spec_.nodes) refuse(different_nodes(first.nodes, spec_.node, spec_.nodes));
  }

  NodeList wait_for_node_list() {
    return accepted(
        store_.get(key::node_list, Deadline::after(deadline_.left() + decision_timeout)));
  }

  NodeList make_node_list(const RendezvousEndpoint& at) {
    const std::vector<Hello> hellos = collect_hellos();
    NodeList node_list{.refused = {},
                       .run_id = fresh_run_id(),
                       .master_address = master_address(at, hellos),
                       .master_port = free_port(),
                       .nodes = {}};
    for (const Hello& hello : hellos) node_list.nodes.push_back({hello.ranks, hello.host});
    return accepted(store_.compare_set(key::node_list, "", to_text(node_list)));
  }

 private:
  static std::string different_nodes(int first, int node, int nodes) {
    return formatted("--nnodes must be the same on all nodes: node 0 has {}, node {} has {}", first,
                     node, nodes);
  }

  [[noreturn]] void refuse(const std::string& why) {
    store_.compare_set(key::node_list, "", to_text(NodeList{.refused = why}));
    throw BadInput(why);
  }

  [[nodiscard]] NodeList accepted(const std::string& text) const {
    NodeList node_list = parse_node_list(text);
    if (!node_list.refused.empty()) throw BadInput(node_list.refused);
    check_input(std::ssize(node_list.nodes) == spec_.nodes,
                "the list of nodes of the run names {} nodes, expected {}", node_list.nodes.size(),
                spec_.nodes);
    return node_list;
  }

  std::vector<Hello> collect_hellos() {
    std::vector<std::string> keys;
    for (int node = 0; node < spec_.nodes; ++node) keys.push_back(key::node(node));
    do {
      lines_.wait_for(formatted("{} of {} nodes to come to {}: {}", missing(keys).size(),
                                spec_.nodes, spec_.rendezvous, node_list(missing(keys))));
    } while (!have_come(keys));
    std::vector<Hello> hellos;
    for (int node = 0; node < spec_.nodes; ++node) {
      hellos.push_back(parse_hello(store_.try_get(keys[node]).value_or("")));
      if (hellos.back().nodes != spec_.nodes)
        refuse(different_nodes(spec_.nodes, node, hellos.back().nodes));
    }
    return hellos;
  }

  // False after a while.
  bool have_come(const std::vector<std::string>& keys) {
    try {
      store_.wait(keys, deadline_.or_sooner(Deadline::after(look_again)));
      return true;
    } catch (const Timeout&) {
      if (const auto text = store_.try_get(key::node_list)) static_cast<void>(accepted(*text));
      if (deadline_.passed()) give_up_on(keys);
      return false;
    }
  }

  std::vector<int> missing(const std::vector<std::string>& keys) {
    std::vector<int> nodes;
    for (int node = 0; node < spec_.nodes; ++node)
      if (!store_.try_get(keys[node])) nodes.push_back(node);
    return nodes;
  }

  static std::string node_list(const std::vector<int>& nodes) {
    return formatted("{} {}", nodes.size() == 1 ? "node" : "nodes", listed(nodes, ", "));
  }

  [[noreturn]] void give_up_on(const std::vector<std::string>& keys) {
    const std::vector<int> nodes = missing(keys);
    const std::string why =
        formatted("node 0 waited {} for {}: no agent with --node-rank {} came",
                  format_duration(spec_.join_timeout), node_list(nodes), listed(nodes, " or "));
    store_.compare_set(key::node_list, "", to_text(NodeList{.refused = why}));
    throw Timeout(why);
  }

  // Where the other nodes reach this one, node 0.
  static std::string master_address(const RendezvousEndpoint& at,
                                    const std::vector<Hello>& hellos) {
    const auto outside = std::ranges::find_if(
        hellos, [](const Hello& hello) { return !sys::is_loopback_name(hello.address); });
    return sys::address_towards(
        outside == hellos.end() || sys::is_loopback_name(at.host) ? at.host : outside->address);
  }

  const NodeSpec& spec_;
  Store& store_;
  Deadline deadline_;
  WaitingLines& lines_;
};

}  // namespace

std::string key::node(int number) { return formatted("lockstep-run/nodes/{}", number); }
std::string key::heartbeat(int number) { return formatted("lockstep-run/heartbeat/{}", number); }
std::string key::left(int number) { return formatted("lockstep-run/left/{}", number); }

NodeRendezvous join_rendezvous(const NodeSpec& spec, int ranks, WaitingLines& lines) {
  const RendezvousEndpoint at = parse_rendezvous_endpoint(spec.rendezvous);
  const Deadline deadline = Deadline::after(spec.join_timeout);
  NodeRendezvous rendezvous;
  rendezvous.secret = secret_of_agents(spec, at);
  rendezvous.store_address = "tcp://" + at.text();
  if (spec.node == 0) rendezvous.server = serve_agents(spec, at, rendezvous.secret);
  lines.wait_for(formatted("node 0 at {}", at.text()));
  rendezvous.store =
      come_to_store(spec, at, rendezvous.secret, formatted("node {}", spec.node), "node 0");
  lines.wait_for(formatted("the other nodes to come to {}", at.text()));
  Talk talk(spec, *rendezvous.store, deadline, lines);
  try {
    talk.introduce(*rendezvous.store, own_hello(spec, ranks, *rendezvous.store));
    if (spec.node != 0) talk.compare_with_node_0();
    rendezvous.node_list = spec.node == 0 ? talk.make_node_list(at) : talk.wait_for_node_list();
  } catch (const PeerLost&) {
    throw PeerLost(formatted("node 0 at {} left before the run began", at.text()));
  } catch (const Error&) {
    static_cast<void>(wait_for_the_others(*rendezvous.store, spec, Deadline::after(time_to_read)));
    throw;
  }
  return rendezvous;
}

bool wait_for_the_others(Store& store, const NodeSpec& spec, Deadline deadline) {
  if (spec.node != 0) return true;
  try {
    std::vector<std::string> leaving;
    for (int node = 1; node < spec.nodes; ++node)
      if (store.try_get(key::node(node))) leaving.push_back(key::left(node));
    store.wait(leaving, deadline);
    return true;
  } catch (const Timeout&) {
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace lockstep::launch
