#include "launch/node_ranks.h"

#include "base/format.h"
#include "base/text.h"
#include "launch/round_store.h"
#include "sys/process.h"
#include "sys/socket_address.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds first_line_after{1}, between_lines{10};

// Lets the signal take its default effect. All other threads block the signal, so it is delivered
// to this thread.
void let_it_have_its_effect(int signal) {
  sigset_t one, before;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, &before);
  ::kill(::getpid(), signal);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

WaitingLines::WaitingLines(std::function<void(const std::string&)> say, bool signals)
    : say_(std::move(say)), end_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!end_) throw SystemError("making an eventfd", errno);
  if (signals) signals_.emplace();
  thread_ = sys::Thread("waiting lines", [this] { run(); });
}

WaitingLines::~WaitingLines() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(end_.get(), &one, sizeof(one));
  thread_.join();
}

void WaitingLines::wait_for(std::string what) {
  const Lock lock(mutex_);
  what_ = std::move(what);
}

std::string WaitingLines::what() const {
  const Lock lock(mutex_);
  return what_;
}

void WaitingLines::run() {
  Deadline next = Deadline::after(first_line_after);
  for (bool ended = false; !ended;) {
    Poller poller;
    poller.watch(end_.get(), POLLIN, [&] { ended = true; });
    if (signals_) poller.watch(signals_->descriptor(), POLLIN, [&] { take_signals(); });
    poller.wait(next);
    if (ended || !next.passed()) continue;
    next = Deadline::after(between_lines);
    if (const std::string waited_for = what(); !waited_for.empty())
      say_("waiting for " + waited_for);
  }
}

void WaitingLines::take_signals() {
  for (int signal : signals_->take()) {
    const std::string waited_for = what();
    if (asks_to_stop(signal) && !waited_for.empty())
      say_(formatted("{} came while waiting for {}; no rank has been started",
                     sys::signal_name(signal), waited_for));
    let_it_have_its_effect(signal);
  }
}

namespace {

// Interval between checks for nodes that have joined or refused.
constexpr std::chrono::milliseconds look_again{500};

std::vector<int> missing_nodes(Store& store, const NodeSpec& spec) {
  const std::vector<std::string> claimed = store.keys(round_key::of_agents);
  std::vector<int> nodes;
  for (int node = 0; node < spec.nodes; ++node)
    if (!std::ranges::binary_search(claimed, round_key::agent(node))) nodes.push_back(node);
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
    throw BadInput(formatted("another agent has --node-rank {} already: pid {} on host {}",
                             spec.node, other.pid, other.host));
  }
  store.set_on_disconnect(round_key::gone(spec.node), round_key::gone_without_a_word);
}

// Throws if a node has joined and left again, or has refused the run.
void check_nodes(Store& store, const NodeSpec& spec) {
  if (const auto text = store.try_get(round_key::result))
    throw BadInput(parse_run_result(*text).how);
  const std::vector<std::string> gone = store.keys(round_key::of_gone);
  for (int node = 0; node < spec.nodes; ++node) {
    if (node == spec.node || !std::ranges::binary_search(gone, round_key::gone(node))) continue;
    if (const auto text = store.try_get(round_key::agent(node)))
      refuse_run(store, spec.node,
                 formatted("node {} (host {}) left before the run began", node,
                           parse_node_claim(*text).host));
  }
}

// Publishes to the other nodes why the run is given up, and returns the reason.
std::string give_up_on(const std::vector<int>& nodes, Store& store, const NodeSpec& spec) {
  const std::string why = formatted(
      "node {} timed out after {} waiting for {}: no agent with --node-rank {} arrived", spec.node,
      format_duration(spec.join_timeout), list_of(nodes), listed(nodes, " or "));
  store.compare_set(
      round_key::result, "",
      to_text(RunResult{.kind = RunResult::Kind::failed, .node = spec.node, .how = why}));
  return why;
}

// Returns the nodes that have not joined by the deadline.
std::vector<int> wait_for_all(const NodeSpec& spec, Store& store, Deadline deadline,
                              WaitingLines& lines) {
  std::vector<std::string> keys;
  for (int node = 0; node < spec.nodes; ++node) keys.push_back(round_key::agent(node));
  for (;;) {
    if (spec.node == 0) {
      const std::vector<int> missing = missing_nodes(store, spec);
      lines.wait_for(formatted("{} of {} nodes to arrive at {}: {}", missing.size(), spec.nodes,
                               spec.rendezvous, list_of(missing)));
    }
    try {
      store.wait(keys, deadline.or_sooner(Deadline::after(look_again)));
      return {};
    } catch (const Timeout&) {
      check_nodes(store, spec);
      if (deadline.passed()) return missing_nodes(store, spec);
    }
  }
}

std::vector<NodeClaim> claims_of_all(const NodeSpec& spec, Store& store) {
  std::vector<NodeClaim> claims;
  for (int node = 0; node < spec.nodes; ++node)
    claims.push_back(parse_node_claim(store.try_get(round_key::agent(node)).value_or("")));
  return claims;
}

}  // namespace

std::string silence_of_node_0(const NodeSpec& spec) {
  return formatted(
      "node 0 at {} does not answer: its agent is stopped, or its host cannot be reached",
      spec.rendezvous);
}

std::vector<NodeClaim> claim_node_rank(const NodeSpec& spec, TcpStore& store, Deadline deadline,
                                       WaitingLines& lines) {
  lines.wait_for(formatted("the other nodes to arrive at {}", spec.rendezvous));
  std::string why;
  try {
    claim(spec, store);
    const std::vector<int> missing = wait_for_all(spec, store, deadline, lines);
    if (missing.empty()) return claims_of_all(spec, store);
    why = give_up_on(missing, store, spec);
  } catch (const Timeout&) {  // of a single call
    why = silence_of_node_0(spec);
  }
  throw Timeout(why);
}

void refuse_run(Store& store, int node, const std::string& why) {
  const RunResult refused{.kind = RunResult::Kind::failed, .node = node, .how = why};
  throw BadInput(parse_run_result(store.compare_set(round_key::result, "", to_text(refused))).how);
}

std::string address_for_others(const NodeSpec& spec, const std::vector<NodeClaim>& claims) {
  const sys::HostPort at = endpoint_of(spec);
  const auto outside = std::ranges::find_if(
      claims, [](const NodeClaim& claim) { return !sys::is_loopback_name(claim.address); });
  return sys::address_towards(
      outside == claims.end() || sys::is_loopback_name(at.host) ? at.host : outside->address);
}

}  // namespace lockstep::launch
