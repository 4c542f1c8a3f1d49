#include "launch/rounds.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "launch/round_store.h"
#include "sys/process.h"
#include "sys/program.h"
#include "sys/socket_address.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <utility>

namespace lockstep::launch {

namespace {

// After a worker's failure: how long to wait for the loss of a node, which may be the cause.
constexpr std::chrono::milliseconds time_to_miss_a_node{300};
constexpr std::chrono::milliseconds look_again{20};
constexpr std::chrono::seconds early{60}, first_pause{1}, longest_pause{30};
constexpr std::chrono::seconds time_to_close{2};
// How long other nodes wait, after the join deadline, for the decision of node 0.
constexpr std::chrono::seconds time_to_decide{10};
constexpr std::int64_t kept_epochs = 1000;
constexpr std::string_view nnodes_option = "--nnodes ";

std::string first_value(Store& store, const char* key, const std::string& value) {
  return store.compare_set(key, "", value);
}

std::string terms_of(const NodeSpec& nodes, int max_restarts, bool is_fixed) {
  if (is_fixed) return formatted("{}{}", nnodes_option, nodes.nodes);
  return formatted("{}{}:{} --max-restarts {}", nnodes_option, least_nodes(nodes), nodes.nodes,
                   max_restarts);
}

std::string number_of_nodes(const std::string& terms) {
  return terms.starts_with(nnodes_option) ? terms.substr(nnodes_option.size()) : terms;
}

Deadline later(Deadline deadline, Duration time) {
  return deadline.is_never() ? deadline : Deadline::after(deadline.left() + time);
}

// Returns the result of a fixed run if the store cannot be used any more.
RunResult end_of_store(const std::exception& error, const NodeSpec& nodes) {
  RunResult result{.kind = RunResult::Kind::failed, .node = 0};
  if (dynamic_cast<const BadInput*>(&error) != nullptr) {
    result.node = -1;
    result.how = error.what();
  } else if (dynamic_cast<const Timeout*>(&error) != nullptr) {
    result.how = formatted(
        "its agent, which serves the store, has not answered for {}: it is stopped, or its host "
        "cannot be reached",
        format_duration(nodes.lost_after));
  } else {
    result.how = formatted(
        "its agent, which serves the store, is gone: it was killed, or its host cannot be reached "
        "({})",
        escaped(error.what(), 300));
  }
  return result;
}

}  // namespace

std::string spoiled(const std::string& key, const std::string& why) {
  return formatted(
      "the store's key {} has a value that no agent wrote ({}); keys that begin with lockstep-run/ "
      "are reserved for agents",
      key, escaped(why, 200));
}

Rounds::Rounds(const NodeSpec& nodes, int max_restarts, RoundStore store, Deadline join_deadline,
               WaitingLines& lines)
    : RoundSource(std::move(store)),
      nodes_(nodes),
      least_(least_nodes(nodes)),
      most_(nodes.nodes),
      max_restarts_(max_restarts),
      others_may_come_(nodes.nodes > 1 || !nodes.store.empty()),
      is_fixed_(others_may_come_ && max_restarts == 0 && least_ == most_ && nodes.store.empty()),
      keys_(*store_.store) {
  join(max_restarts, join_deadline, lines);
  threads_.emplace_back("rounds", [this] { follow(); });
  if (others_may_come_) threads_.emplace_back("heartbeat", [this] { heartbeat(); });
}

Rounds::~Rounds() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  closing_changed_.notify_all();
  const auto said = std::make_shared<std::promise<void>>();
  std::future<void> all_said = said->get_future();
  tasks_.push([said] { said->set_value(); });
  all_said.wait_for(time_to_close);
  store_.store->disconnect();  // calls that still wait fail now
  static_cast<void>(tasks_.end(Deadline::never().left()));
  for (sys::Thread& thread : threads_) thread.join();
}

void Rounds::join(int max_restarts, Deadline deadline, WaitingLines& lines) {
  const std::string peer = store_.store->own_address();
  address_ = sys::is_loopback_name(peer) ? "127.0.0.1" : peer;
  const std::string terms = terms_of(nodes_, max_restarts, is_fixed_);
  if (!is_fixed_) {
    check_terms(terms, deadline);
    check_input(!keys_.try_get(round_key::result),
                "the run that met at this store is over; a store is for one run: start another "
                "one, with another --log");
    take_number();
    return announce();
  }
  node_ = nodes_.node;
  if (node_ != 0) deadline = later(deadline, time_to_decide);
  try {
    check_terms(terms, deadline);
    claim_number(deadline, lines);
  } catch (const PeerLost&) {
    throw PeerLost(formatted("node 0 at {} left before the run began", nodes_.rendezvous));
  } catch (const Error&) {
    wait_for_the_others(Deadline::after(time_to_read), [] { return false; });
    throw;
  }
}

// Checks that all agents have the same options. In a fixed run, node 0's options count.
void Rounds::check_terms(const std::string& own, Deadline deadline) {
  const bool counts = !is_fixed_ || node_ == 0;
  const std::string stands =
      counts ? first_value(keys_, round_key::terms, own) : terms_of_node_0(deadline);
  if (!counts && stands != own)
    refuse_run(keys_, node_,
               formatted("--nnodes must be the same on all nodes: node 0 has {}, node {} has {}",
                         escaped(number_of_nodes(stands), 100), node_, number_of_nodes(own)));
  check_input(stands == own,
              "all nodes must be started with the same options: another node has {}, this one {}",
              escaped(stands), own);
  store_.run_id = single_line(first_value(keys_, round_key::name, fresh_run_id()));
}

std::string Rounds::terms_of_node_0(Deadline deadline) {
  try {
    return keys_.get(round_key::terms, deadline);
  } catch (const Timeout&) {
    throw Timeout(silence_of_node_0(nodes_));
  }
}

void Rounds::claim_number(Deadline deadline, WaitingLines& lines) {
  claims_ = claim_node_rank(nodes_, *store_.store, deadline, lines);
  if (node_ == 0) address_ = address_for_others(nodes_, claims_);
}

void Rounds::take_number() {
  const std::int64_t number = keys_.add(round_key::agents, 1) - 1;
  check_input(number >= 0 && number <= most_node_number,
              "at most {} nodes can join a run over time", most_node_number + 1);
  node_ = static_cast<int>(number);
  store_.store->set_on_disconnect(round_key::gone(node_), round_key::gone_without_a_word);
  keys_.set(round_key::agent(node_), single_line(host_));
}

std::string Rounds::host(int node) const {
  return node >= 0 && node < std::ssize(claims_) ? claims_[node].host : "unknown";
}

void Rounds::request_join(int round, const JoinRequest& request) {
  joining_ = round;
  push([this, round, request] {
    keys_.set(round_key::join_request(round, node_), to_text(request));
    announce();
  });
}

void Rounds::fail(const RoundPlan& plan, const RunResult& failure) {
  push([this, plan, failure] {
    // Several agents may wait here: the failure that was published first counts.
    const std::string first =
        is_fixed_ ? first_value(keys_, round_key::failure, to_text(failure)) : std::string();
    const std::optional<std::string> why = node_lost_soon(plan);
    if (is_fixed_) {
      if (!why) keys_.compare_set(round_key::result, "", first);
      return announce();
    }
    const bool is_of_a_start = !why && is_early(plan, failure);
    early_failures_ = is_of_a_start ? early_failures_ + 1 : 0;
    const bool is_last = plan.restarts >= max_restarts_ ||
                         (is_of_a_start && failure.exit_code == usage_exit_code) ||
                         keys_.try_get(round_key::final_failure(plan.round)).has_value();
    if (!why && is_last) {
      keys_.compare_set(round_key::result, "", to_text(failure));
    } else {
      pause_after_early_failures();
      keys_.compare_set(round_key::ended(plan.round), "",
                        why.value_or(formatted("rank {} on {} has failed ({})", failure.rank, host_,
                                               failure.how)));
    }
    announce();
  });
}

// Waits briefly for the loss of a node of the round. Returns a sentence about it, if there is one.
std::optional<std::string> Rounds::node_lost_soon(const RoundPlan& plan) {
  const Deadline limit =
      Deadline::after(plan.nodes.size() > 1 ? time_to_miss_a_node : Duration::zero());
  std::optional<std::string> why = lost_node(plan);
  for (; !why && !limit.passed() && !closing_; why = lost_node(plan)) pause(look_again);
  return why;
}

// Returns true if the rank failed in its first minute and before init(). (A rank without peers, and
// programs that never call our init(), do not count their calls of init().) SIGKILL is not counted,
// because it comes from outside.
bool Rounds::is_early(const RoundPlan& plan, const RunResult& failure) {
  return failure.after < early && failure.exit_code != 128 + SIGKILL &&
         !keys_.try_get(round_key::inits_of(store_.run_id, plan.round, failure.rank));
}

// The first early failure may be an accident, so the next round begins at once.
void Rounds::pause_after_early_failures() {
  if (early_failures_ < 2) return;
  const int doublings = std::min(early_failures_ - 2, 5);
  const Duration pause = std::min<Duration>(first_pause * (1 << doublings), longest_pause);
  emit({.kind = RoundEvent::Kind::pause,
        .why = formatted(
            "the program has failed {} times in a row before init(): the next round begins "
            "in {}",
            early_failures_, format_duration(pause)),
        .pause = pause});
}

void Rounds::done(int round) {
  push([this, round] {
    keys_.set(round_key::of_done(round) + std::to_string(node_), "");
    announce();
  });
}

void Rounds::stop(const RunResult& stopped, bool is_spare) {
  push([this, stopped, is_spare] {
    const bool others_go_on =
        !store_.server && (is_spare || (least_ < most_ && std::ssize(live_nodes()) > least_));
    if (others_go_on) {
      leaving_ = true;
      keys_.set(round_key::gone(node_),
                formatted("it was asked to stop ({})", sys::signal_name(stopped.signal)));
    } else {
      keys_.compare_set(round_key::result, "", to_text(stopped));
    }
    announce();
  });
}

void Rounds::end_run(const RunResult& result) {
  push([this, result] {
    keys_.compare_set(round_key::result, "", to_text(result));
    announce();
  });
}

void Rounds::wait_for_the_others(Deadline deadline, const std::function<bool()>& give_up) {
  if (!store_.server || !others_may_come_) return;
  try {
    while (live_nodes().size() > 1 && !deadline.passed() && !give_up()) pause(look_again);
  } catch (const Error& error) {
    log::debug("waiting for the other nodes: {}", error.what());
  }
}

// A task fails if the store is lost, which the thread that follows the store notices too, or if a
// rank has written an invalid value into a key of the agents.
void Rounds::push(std::function<void()> task) {
  tasks_.push([this, task = std::move(task)] {
    try {
      task();
    } catch (const std::exception& error) {
      lose(error);
    }
  });
}

// Makes the other agents read the store again.
void Rounds::announce() {
  const std::int64_t number = raise(round_key::epoch);
  keys_.set(round_key::epoch_of(number), "");
  if (number > kept_epochs) keys_.erase(round_key::epoch_of(number - kept_epochs));
}

// Ranks have the secret too and can write any value, so check the result.
std::int64_t Rounds::raise(const std::string& key) {
  try {
    return keys_.add(key, 1);
  } catch (const BadInput& error) {
    throw BadInput(spoiled(key, error.what()));
  }
}

void Rounds::lose(const std::exception& error) noexcept {
  if (closing_) return;
  if (!is_fixed_)
    return emit({.kind = RoundEvent::Kind::over,
                 .result = {.kind = RunResult::Kind::failed,
                            .node = -1,
                            .how = formatted("the agents' store is lost: {}",
                                             escaped(error.what(), 300))}});
  const RunResult result = end_of_store(error, nodes_);
  emit({.kind = RoundEvent::Kind::over, .result = result, .store_lost = result.node == 0});
  try {
    // For the other agents, and for node 0 in case it continues later.
    keys_.compare_set(round_key::result, "", to_text(result));
    announce();
  } catch (const std::exception& lost) {
    log::debug("telling the other nodes: {}", lost.what());
  }
}

void Rounds::pause(Duration time) {
  Lock lock(mutex_);
  closing_changed_.wait_for(lock.native(), time, [&] { return closing_.load(); });
}

// Each agent watches the heartbeat of the lowest living node, whose agent watches all other nodes.
// No agent watches its own heartbeat.
void Rounds::heartbeat() noexcept {
  constexpr int heartbeats_until_lost = 5;
  while (!closing_) {
    try {
      heartbeat_once();
    } catch (const std::exception& error) {
      return lose(error);
    }
    pause(nodes_.lost_after / heartbeats_until_lost);
  }
}

void Rounds::heartbeat_once() {
  static_cast<void>(raise(round_key::heartbeat(node_)));
  const auto live = live_nodes();
  if (live.empty()) return;
  const bool watches_all = *live.begin() == node_;
  for (const int node : live) {
    if (node == node_ || (!watches_all && node != *live.begin())) continue;
    auto [monitor, is_new] = heard_.try_emplace(node, nodes_.lost_after, 2 * nodes_.lost_after / 5);
    monitor->second.note(keys_.try_get(round_key::heartbeat(node)).value_or(""), Clock::now());
    if (!monitor->second.lost(Clock::now())) continue;
    keys_.compare_set(
        round_key::gone(node), "",
        formatted("its agent has not answered for {}: it is stopped, or its host cannot be reached",
                  format_duration(nodes_.lost_after)));
    announce();
  }
}

}  // namespace lockstep::launch
