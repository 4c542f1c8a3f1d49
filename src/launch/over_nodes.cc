// A run on several nodes: each agent tells the others how it went on its own node, and does what
// the first word of all says.
#include "base/format.h"
#include "launch/run.h"

#include <algorithm>

namespace lockstep::launch {

namespace {

// For the others to see their ranks end, before node 0 takes the store away.
constexpr std::chrono::seconds time_to_end{5};

}  // namespace

bool Agent::Run::is_over() const {
  const bool none_lives = state_machine_.state() == State::done || (rounds_ && workers_.empty());
  return none_lives && ((!nodes_ && !rounds_) || run_result_ || interrupted_);
}

int Agent::Run::own_node() const { return rounds_ ? rounds_->node() : spec_.nodes.node; }

int Agent::Run::first_rank() const {
  if (rounds_) return plan_.first_rank(std::max(0, plan_.group_rank(own_node())));
  return nodes_ ? nodes_->node_list().first_rank(spec_.nodes.node) : 0;
}

int Agent::Run::ranks_of_all() const {
  if (rounds_) return plan_.ranks();
  return nodes_ ? nodes_->node_list().ranks() : spec_.ranks;
}

std::string Agent::Run::where(int node) const {
  if (rounds_ && plan_.nodes.size() < 2) return {};
  if (rounds_) {
    const int group_rank = plan_.group_rank(node);
    return formatted("node {}, host {}", group_rank,
                     group_rank < 0 ? "unknown" : plan_.nodes[group_rank].host);
  }
  if (!nodes_) return {};
  return formatted("node {}, host {}", node, nodes_->host(node));
}

std::string Agent::Run::node_name(int node) const {
  if (nodes_) return nodes_->name(node);
  const int group_rank = plan_.group_rank(node);
  return group_rank < 0 ? "a node"
                        : formatted("node {} (host {})", group_rank, plan_.nodes[group_rank].host);
}

void Agent::Run::watch_nodes(Poller& poller) {
  if (!nodes_) return;
  poller.watch(nodes_->descriptor(), POLLIN, [&] {
    if (auto run_result = nodes_->take_run_result()) obey(*std::move(run_result));
  });
}

void Agent::Run::tell_failure(const std::string& how) {
  if ((!nodes_ && !rounds_) || std::exchange(told_, true)) return;
  own_failure_ = RunResult{.kind = RunResult::Kind::failed,
                           .node = own_node(),
                           .exit_code = result_.exit_code,
                           .how = how};
  if (rounds_)
    rounds_->end_run(*own_failure_);
  else
    nodes_->say(*own_failure_);
}

void Agent::Run::tell_failure(const RankEnd& end) {
  if ((!nodes_ && !rounds_) || std::exchange(told_, true)) return;
  const RankOutput& output = workers_[end.rank - first_rank()]->output();
  own_failure_ = RunResult{.kind = RunResult::Kind::failed,
                           .node = own_node(),
                           .exit_code = end.exit_code,
                           .rank = end.rank,
                           .pid = end.pid,
                           .after = end.after,
                           .at = failed_at_,
                           .how = end.how,
                           .log_file = output.log_file(),
                           .last_lines = output.last_lines().lines(reported_lines)};
  if (rounds_)
    rounds_->fail(plan_, *own_failure_);
  else
    nodes_->say(*own_failure_);
}

void Agent::Run::tell_stop() {
  if (rounds_ && state_machine_.stop_signal() != 0)
    return ask_rounds_to_stop(state_machine_.stop_signal());
  if (!nodes_ || state_machine_.stop_signal() == 0 || std::exchange(told_, true)) return;
  nodes_->say({.kind = RunResult::Kind::stopped,
               .signal = state_machine_.stop_signal(),
               .node = spec_.nodes.node});
}

void Agent::Run::tell_done() {
  if (rounds_ && !run_result_ && state_machine_.cause() < 0 && gathering_for_ < 0 &&
      !workers_.empty() && !std::exchange(told_, true))
    rounds_->done(plan_.round);
  if (!nodes_ || run_result_ || std::exchange(told_, true)) return;
  nodes_->say_done();
}

void Agent::Run::obey(RunResult run_result) {
  // Of a store that is lost one cannot learn whose failure came first.
  const bool store_lost = run_result.rank < 0 && run_result.node == 0 && spec_.nodes.node != 0;
  run_result_ = store_lost && own_failure_ ? *own_failure_ : std::move(run_result);
  const bool failed = run_result_->kind == RunResult::Kind::failed;
  if (failed && run_result_->node == spec_.nodes.node && !own_failure_) {
    run_result_->how = formatted("the other nodes have given this one up ({})", run_result_->how);
    run_result_->node = run_result_->rank = -1;
  }
  if (run_result_->node == spec_.nodes.node) return;
  told_ = true;
  const std::string node = nodes_->name(run_result_->node);
  if (failed) {
    failure_ = run_result_->node < 0   ? run_result_->how
               : run_result_->rank < 0 ? formatted("{} has failed: {}", node, run_result_->how)
                                       : formatted("rank {} on {} has failed ({})",
                                                   run_result_->rank, node, run_result_->how);
    state_machine_.failed_elsewhere(Clock::now());
  } else if (run_result_->kind == RunResult::Kind::stopped &&
             state_machine_.state() == State::running) {
    say(formatted("{} was asked to stop ({})", node, sys::signal_name(run_result_->signal)));
    state_machine_.signalled(run_result_->signal, Clock::now());
  }
}

// False when the cause, if there is one, is on this node.
bool Agent::Run::report_failure_elsewhere() {
  if (!run_result_ || run_result_->kind != RunResult::Kind::failed) return false;
  result_.exit_code = std::max(1, run_result_->exit_code);
  if (run_result_->node == own_node() && own_failure_)
    return own_failure_->rank < 0;  // has been said
  if (run_result_->rank < 0) {
    say(failure_);
    if (!result_.ends.empty()) say("the ranks of this node: " + describe(result_.ends));
    return true;
  }
  const RankEnd cause{.rank = run_result_->rank,
                      .pid = run_result_->pid,
                      .exit_code = run_result_->exit_code,
                      .how = run_result_->how,
                      .after = run_result_->after};
  result_.cause = cause;
  report({.cause = cause,
          .ranks = ranks_of_all(),
          .where = where(run_result_->node),
          .at = run_result_->at,
          .last_lines = run_result_->last_lines,
          .shared = &failures_,
          .log_file = run_result_->log_file,
          .others = result_.ends});
  return true;
}

void Agent::Run::leave_nodes() {
  const Deadline limit = Deadline::after(
      time_to_end + (state_machine_.stop_signal() != 0 ? spec_.grace : spec_.failure_grace));
  if (rounds_)
    rounds_->wait_for_the_others(limit, [this] {
      Poller poller;
      watch_signals(poller);
      poller.wait(Deadline::after(Duration::zero()));
      return interrupted_;
    });
  if (!nodes_) return;
  nodes_->begin_to_leave(limit);
  while (!nodes_->have_left() && !interrupted_) {
    Poller poller;
    watch_signals(poller);
    poller.watch(nodes_->descriptor(), POLLIN,
                 [&] { static_cast<void>(nodes_->take_run_result()); });
    poller.wait(Deadline::never());
  }
}

}  // namespace lockstep::launch
