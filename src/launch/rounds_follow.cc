// How each agent reads the store and acts on it.
#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/rounds.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::milliseconds turn_of_one{1000}, turn_of_several{200}, turn_with_survivors{5};
// The sentence of lost_node() begins with this; other reasons for the end of a round do not.
constexpr std::string_view lost_node_prefix = "node ";

std::set<std::string> names_below(Store& store, const std::string& prefix) {
  std::set<std::string> names;
  for (const std::string& key : store.keys(prefix)) names.insert(key.substr(prefix.size()));
  return names;
}

int checked_number(const std::string& text, int most, const char* what) {
  const auto number = parse_integer(text);
  check_input(number && *number >= 0 && *number <= most,
              "a key of the agents, {}: expected a number, found '{}'", what, escaped(text, 40));
  return static_cast<int>(*number);
}

}  // namespace

void Rounds::follow() noexcept {
  try {
    if (const auto newest = keys_.try_get(round_key::number)) {
      round_ = checked_number(*newest, most_rounds, round_key::number);
      plan_ = parse_round_plan(keys_.try_get(round_key::plan(round_)).value_or(""));
      emit({.kind = RoundEvent::Kind::spare, .round = round_, .plan = plan_});
    } else {
      begin_rendezvous("");
    }
    while (!closing_ && look()) wait_for_epoch();
  } catch (const std::exception& error) {
    lose(error);
  }
}

// Returns false if the run is over.
bool Rounds::look() {
  epoch_ = parse_integer(keys_.try_get(round_key::epoch).value_or("0")).value_or(0);
  if (is_fixed_) end_if_a_node_is_gone();
  const auto why = is_fixed_ ? std::nullopt : keys_.try_get(round_key::gone(node_));
  if (why && !comes_back()) {
    const auto kind = leaving_ ? RunResult::Kind::stopped : RunResult::Kind::failed;
    emit({.kind = RoundEvent::Kind::over,
          .result = {.kind = kind,
                     .node = leaving_ ? node_ : -1,
                     .how = formatted("the other nodes have excluded this one ({})",
                                      escaped(*why, 200))}});
    return false;
  }
  if (is_over()) return false;
  if (!in_rendezvous_) look_at_round();
  if (in_rendezvous_) look_at_rendezvous();
  return true;
}

void Rounds::end_if_a_node_is_gone() {
  for (const std::string& name : names_below(keys_, round_key::of_gone)) {
    const int node = checked_number(name, nodes_.nodes - 1, "gone");
    if (node == node_) continue;
    const RunResult lost{.kind = RunResult::Kind::failed,
                         .node = node,
                         .how = escaped(keys_.try_get(round_key::gone(node)).value_or(""), 200)};
    keys_.compare_set(round_key::result, "", to_text(lost));
    announce();
  }
}

// Returns true if the run has a result. Other agents may have ended a round that this agent has not
// begun yet.
bool Rounds::is_over() {
  const auto text = keys_.try_get(round_key::result);
  if (!text) return false;
  RoundEvent over{.kind = RoundEvent::Kind::over};
  try {
    over.result = parse_run_result(*text);
  } catch (const BadInput& error) {
    throw BadInput(spoiled(round_key::result, error.what()));
  }
  if (const auto plan = in_rendezvous_ ? keys_.try_get(round_key::plan(round_ + 1)) : std::nullopt)
    over.plan = parse_round_plan(*plan);
  emit(std::move(over));
  return true;
}

// While the connection to the store was lost, the store marked this node as gone, and perhaps all
// other nodes. Erases this node's mark and returns true, unless a round was planned without this
// node's workers, or this node is leaving.
bool Rounds::comes_back() {
  if (leaving_) return false;
  if (const auto text = keys_.try_get(round_key::plan(round_ + 1))) {
    const bool had_workers = round_ >= 0 && plan_.group_rank(node_) >= 0;
    if (had_workers || parse_round_plan(*text).group_rank(node_) >= 0) return false;
  }
  keys_.erase(round_key::gone(node_));
  if (leaving_) keys_.set(round_key::gone(node_), "it was asked to stop");  // set in the meantime
  announce();
  return true;
}

// Returns true for some time after this agent has reconnected to the store: other agents may have
// lost it too and reconnect later.
bool Rounds::waits_for_the_others() {
  const std::int64_t connections = store_.store->connections();
  if (connections_.exchange(connections) != connections) back_since_ = Clock::now();
  const auto since = back_since_.load();
  return since != Clock::time_point::min() && Clock::now() - since < nodes_.lost_after;
}

void Rounds::look_at_round() {
  if (!has_hot_spares_ && max_restarts_ > 0 && keys_.try_get(round_key::hot_spares)) {
    has_hot_spares_ = true;
    emit({.kind = RoundEvent::Kind::hot_spares});
  }
  auto ended = keys_.try_get(round_key::ended(round_));
  if (!ended) {
    const std::string why = reason_to_end();
    if (why.empty()) {
      if (!all_done()) return;
      keys_.compare_set(round_key::result, "", to_text(RunResult{}));
      return announce();
    }
    ended = keys_.compare_set(round_key::ended(round_), "", why);
    announce();
  }
  begin_rendezvous(*ended);
}

std::string Rounds::reason_to_end() {
  if (!others_may_come_ || is_fixed_) return "";
  const auto lost = lost_node(plan_);
  if (lost && !waits_for_the_others()) return *lost;
  const auto live = live_nodes();
  const bool room = std::ssize(plan_.nodes) < most_;
  const bool some_wait =
      std::ranges::any_of(live, [&](int node) { return plan_.group_rank(node) < 0; });
  return room && some_wait ? "nodes join" : "";
}

bool Rounds::all_done() {
  const auto done = names_below(keys_, round_key::of_done(round_));
  return std::ranges::all_of(plan_.nodes, [&](const RoundPlan::Node& node) {
    return done.contains(std::to_string(node.node));
  });
}

void Rounds::begin_rendezvous(const std::string& why) {
  in_rendezvous_ = true;
  rendezvous_since_ = Clock::now();
  enough_since_.reset();
  std::set<std::string> survivors;
  if (round_ >= 0) survivors = names_below(keys_, round_key::of_survivors(round_));
  survivors_ = round_ >= 0;
  emit({.kind = RoundEvent::Kind::rendezvous,
        .round = round_ + 1,
        .why = escaped(why, 400),
        .node_was_lost = why.starts_with(lost_node_prefix),
        .workers = std::move(survivors)});
}

void Rounds::look_at_rendezvous() {
  const int round = round_ + 1;
  if (!keys_.try_get(round_key::plan(round))) try_to_plan(round);
  if (const auto text = keys_.try_get(round_key::plan(round)))
    return adopt(parse_round_plan(*text));
  survivors_ = round > 0 && joining_ < round;
  if (!survivors_) return;
  emit({.kind = RoundEvent::Kind::waiting,
        .round = round,
        .workers = names_below(keys_, round_key::of_waiting(round - 1))});
}

// Any agent may write a plan: the first one counts.
void Rounds::try_to_plan(int round) {
  if (round_ >= 0 && gone_node(plan_) && waits_for_the_others()) return;
  const auto live = live_nodes();
  if (std::ssize(live) < least_) {
    enough_since_.reset();
    if (Clock::now() - *rendezvous_since_ < nodes_.join_timeout) return;
    const RunResult too_few{
        .kind = RunResult::Kind::failed,
        .node = -1,
        .how = formatted("timed out after {} waiting for nodes: {} of at least {} have arrived",
                         format_duration(nodes_.join_timeout), live.size(), least_)};
    keys_.compare_set(round_key::result, "", to_text(too_few));
    return announce();
  }
  std::vector<JoinRequest> requests;
  for (const int node : chosen(live)) {
    const auto text = keys_.try_get(round_key::join_request(round, node));
    if (!text) return note_missing_request(node);
    requests.push_back(parse_join_request(*text));
    check_input(requests.back().node == node, "the join request of node {} names node {}", node,
                requests.back().node);
  }
  if (!is_time_to_plan(requests.size())) return;
  const RoundPlan plan = plan_round(round_ < 0 ? nullptr : &plan_, std::move(requests));
  keys_.compare_set(round_key::plan(round), "", to_text(plan));
}

// The node may still be terminating its ranks. In a fixed run, nodes have no ranks at this point,
// so a node without an offer after the timeout is a failure.
void Rounds::note_missing_request(int node) {
  if (!is_fixed_ || Clock::now() - *rendezvous_since_ < nodes_.join_timeout) return;
  const RunResult no_request{
      .kind = RunResult::Kind::failed,
      .node = node,
      .how =
          formatted("its agent has joined the run, but was not ready to start its ranks within {}",
                    format_duration(nodes_.join_timeout))};
  keys_.compare_set(round_key::result, "", to_text(no_request));
  announce();
}

// Before the first round, waits for more nodes to join.
bool Rounds::is_time_to_plan(std::size_t nodes) {
  if (round_ >= 0 || static_cast<int>(nodes) == most_) return true;
  if (!enough_since_) enough_since_ = Clock::now();
  return Clock::now() - *enough_since_ >= nodes_.last_call;
}

// Each node of the plan publishes it, because the node that wrote the plan may have left.
void Rounds::adopt(RoundPlan plan) {
  check_input(plan.round == round_ + 1, "the plan of round {} says that it is of round {}",
              round_ + 1, plan.round);
  plan_ = std::move(plan);
  round_ = plan_.round;
  in_rendezvous_ = false;
  survivors_ = false;
  if (plan_.group_rank(node_) < 0)
    return emit({.kind = RoundEvent::Kind::spare, .round = round_, .plan = plan_});
  keys_.set(round_key::workers(round_), workers_text(plan_));
  keys_.set(round_key::number, std::to_string(round_));
  announce();
  emit({.kind = RoundEvent::Kind::begin, .round = round_, .plan = plan_});
}

std::set<int> Rounds::live_nodes() {
  std::set<int> live;
  const auto gone = names_below(keys_, round_key::of_gone);
  for (const std::string& name : names_below(keys_, round_key::of_agents))
    if (!gone.contains(name)) live.insert(checked_number(name, most_node_number, "agents"));
  return live;
}

// Members of the last round come first, then newcomers in order of arrival.
std::vector<int> Rounds::chosen(const std::set<int>& live) const {
  std::vector<int> nodes;
  if (round_ >= 0)
    for (const RoundPlan::Node& node : plan_.nodes)
      if (live.contains(node.node)) nodes.push_back(node.node);
  for (const int node : live)
    if (round_ < 0 || plan_.group_rank(node) < 0) nodes.push_back(node);
  if (std::ssize(nodes) > most_) nodes.resize(static_cast<std::size_t>(most_));
  return nodes;
}

std::optional<std::string> Rounds::lost_node(const RoundPlan& plan) {
  const std::optional<int> group_rank = gone_node(plan);
  if (!group_rank) return std::nullopt;
  const RoundPlan::Node& lost = plan.nodes[*group_rank];
  return formatted("node {} (host {}) has left: {}", *group_rank, lost.host,
                   escaped(keys_.try_get(round_key::gone(lost.node)).value_or(""), 200));
}

// Returns the group rank of a node in the plan whose agent has gone, if there is one.
std::optional<int> Rounds::gone_node(const RoundPlan& plan) {
  if (!others_may_come_) return std::nullopt;
  for (const std::string& name : names_below(keys_, round_key::of_gone)) {
    const int node = checked_number(name, most_node_number, "gone");
    const int group_rank = plan.group_rank(node);
    if (group_rank >= 0 && node != node_) return group_rank;
  }
  return std::nullopt;
}

void Rounds::wait_for_epoch() {
  const bool awaits_more = others_may_come_ || (!has_hot_spares_ && max_restarts_ > 0);
  const Duration turn = survivors_    ? turn_with_survivors
                        : awaits_more ? turn_of_several
                                      : turn_of_one;
  try {
    static_cast<void>(keys_.get(round_key::epoch_of(epoch_ + 1), Deadline::after(turn)));
  } catch (const Timeout&) {
    return;  // no news, or the store does not answer: the next look() detects that
  }
}

}  // namespace lockstep::launch
