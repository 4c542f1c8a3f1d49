#include "launch/node_ranks.h"

#include "base/format.h"
#include "base/text.h"
#include "launch/node_messages.h"
#include "launch/rendezvous_endpoint.h"
#include "launch/round_keys.h"
#include "launch/round_store.h"
#include "sys/own_address.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace lockstep::launch {

namespace {

constexpr std::chrono::milliseconds look_again{500};  // which nodes have come, which have refused
// Node 0 decides; the others wait a little longer for its word.
constexpr std::chrono::seconds time_to_decide{10};

std::vector<int> missing_nodes(Store& store, const NodeSpec& spec) {
  std::vector<int> nodes;
  for (int node = 0; node < spec.nodes; ++node)
    if (!store.try_get(round_key::agent(node))) nodes.push_back(node);
  return nodes;
}

std::string list_of(const std::vector<int>& nodes) {
  return formatted("{} {}", nodes.size() == 1 ? "node" : "nodes", listed(nodes, ", "));
}

void claim(const NodeSpec& spec, TcpStore& store) {
  const NodeClaim own{.pid = ::getpid(),
                      .mark = fresh_run_id(),
                      .address = store.own_address(),
                      .host = sys::host_name()};
  const std::string stands = store.compare_set(round_key::agent(spec.node), "", to_text(own));
  if (stands != to_text(own)) {
    const NodeClaim other = parse_node_claim(stands);
    throw BadInput(formatted("another agent is node {} already: pid {} on host {}", spec.node,
                             other.pid, other.host));
  }
  store.set_on_disconnect(round_key::gone(spec.node), round_key::gone_without_a_word);
}

// Some may have come and left again, or have refused the run.
void check_nodes(Store& store, const NodeSpec& spec) {
  if (const auto text = store.try_get(round_key::result))
    throw BadInput(parse_run_result(*text).how);
  for (int node = 0; node < spec.nodes; ++node) {
    const auto text = store.try_get(round_key::agent(node));
    if (node != spec.node && text && store.try_get(round_key::gone(node)))
      refuse_run(store, spec.node,
                 formatted("node {} (host {}) left before the run began", node,
                           parse_node_claim(*text).host));
  }
}

[[noreturn]] void give_up_on(const std::vector<int>& nodes, Store& store, const NodeSpec& spec) {
  const std::string why =
      formatted("node {} waited {} for {}: no agent with --node-rank {} came", spec.node,
                format_duration(spec.join_timeout), list_of(nodes), listed(nodes, " or "));
  store.compare_set(
      round_key::result, "",
      to_text(RunResult{.kind = RunResult::Kind::failed, .node = spec.node, .how = why}));
  throw Timeout(why);
}

void wait_for_all(const NodeSpec& spec, Store& store, WaitingLines& lines) {
  const Duration decides = spec.node == 0 ? Duration::zero() : Duration(time_to_decide);
  const Deadline deadline = Deadline::after(spec.join_timeout + decides);
  std::vector<std::string> keys;
  for (int node = 0; node < spec.nodes; ++node) keys.push_back(round_key::agent(node));
  for (;;) {
    const std::vector<int> missing = missing_nodes(store, spec);
    if (spec.node == 0)
      lines.wait_for(formatted("{} of {} nodes to come to {}: {}", missing.size(), spec.nodes,
                               spec.rendezvous, list_of(missing)));
    try {
      return store.wait(keys, deadline.or_sooner(Deadline::after(look_again)));
    } catch (const Timeout&) {
      check_nodes(store, spec);
      if (deadline.passed()) give_up_on(missing_nodes(store, spec), store, spec);
    }
  }
}

}  // namespace

std::string to_text(const NodeClaim& claim) {
  return formatted("{} {} {} {}\n", claim.pid, claim.mark, claim.address, tidy(claim.host));
}

NodeClaim parse_node_claim(std::string_view text) {
  MessageLines lines("the claim", text);
  std::string_view rest = lines.take();
  const auto take_word = [&] {
    const std::size_t blank = rest.find(' ');
    if (blank == 0 || blank == std::string_view::npos) lines.fail("a word and a blank", rest);
    const std::string word(rest.substr(0, blank));
    rest.remove_prefix(blank + 1);
    return word;
  };
  NodeClaim claim;
  const auto numbers = take_numbers<1>(lines, rest, {{{0, std::numeric_limits<int>::max()}}});
  claim.pid = static_cast<int>(numbers[0]);
  claim.mark = take_word();
  claim.address = take_word();
  claim.host = rest;
  if (!lines.at_end()) lines.fail("the end", lines.take());
  return claim;
}

std::vector<NodeClaim> claim_node_rank(const NodeSpec& spec, TcpStore& store, WaitingLines& lines) {
  lines.wait_for(formatted("the other nodes to come to {}", spec.rendezvous));
  claim(spec, store);
  wait_for_all(spec, store, lines);
  std::vector<NodeClaim> claims;
  for (int node = 0; node < spec.nodes; ++node)
    claims.push_back(parse_node_claim(store.try_get(round_key::agent(node)).value_or("")));
  return claims;
}

void refuse_run(Store& store, int node, const std::string& why) {
  const RunResult refused{.kind = RunResult::Kind::failed, .node = node, .how = why};
  throw BadInput(parse_run_result(store.compare_set(round_key::result, "", to_text(refused))).how);
}

std::string address_for_others(const NodeSpec& spec, const std::vector<NodeClaim>& claims) {
  const RendezvousEndpoint at = parse_rendezvous_endpoint(spec.rendezvous);
  const auto outside = std::ranges::find_if(
      claims, [](const NodeClaim& claim) { return !sys::is_loopback_name(claim.address); });
  return sys::address_towards(
      outside == claims.end() || sys::is_loopback_name(at.host) ? at.host : outside->address);
}

}  // namespace lockstep::launch
