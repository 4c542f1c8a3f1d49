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
  return none_lives && (!rounds_ || run_result_ || interrupted_);
}

int Agent::Run::own_node() const { return rounds_ ? rounds_->node() : spec_.nodes.node; }

int Agent::Run::first_rank() const {
  if (rounds_) return plan_.first_rank(std::max(0, plan_.group_rank(own_node())));
  return 0;
}

int Agent::Run::ranks_of_all() const { return rounds_ ? plan_.ranks() : spec_.ranks; }

std::string Agent::Run::where(int node) const {
  if (plan_.nodes.size() < 2) return {};
  const int group_rank = plan_.group_rank(node);
  return formatted("node {}, host {}", group_rank,
                   group_rank < 0 ? "unknown" : plan_.nodes[group_rank].host);
}

std::string Agent::Run::node_name(int node) const {
  if (!has_rounds(spec_)) return formatted("node {} (host {})", node, rounds_->host(node));
  const int group_rank = plan_.group_rank(node);
  return group_rank < 0 ? "a node"
                        : formatted("node {} (host {})", group_rank, plan_.nodes[group_rank].host);
}

void Agent::Run::tell_failure(const std::string& how) {
  if (!rounds_ || std::exchange(told_, true)) return;
  own_failure_ = RunResult{.kind = RunResult::Kind::failed,
                           .node = own_node(),
                           .exit_code = result_.exit_code,
                           .how = how};
  rounds_->end_run(*own_failure_);
}

void Agent::Run::tell_failure(const RankEnd& end) {
  if (!rounds_ || std::exchange(told_, true)) return;
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
  rounds_->fail(plan_, *own_failure_);
}

void Agent::Run::tell_stop() {
  if (rounds_ && state_machine_.stop_signal() != 0)
    ask_rounds_to_stop(state_machine_.stop_signal());
}

void Agent::Run::tell_done() {
  if (rounds_ && !run_result_ && state_machine_.cause() < 0 && gathering_for_ < 0 &&
      !workers_.empty() && !std::exchange(told_, true))
    rounds_->done(plan_.round);
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
  if (!rounds_) return;
  rounds_->wait_for_the_others(limit, [this] {
    Poller poller;
    watch_signals(poller);
    poller.wait(Deadline::after(Duration::zero()));
    return interrupted_;
  });
}

}  // namespace lockstep::launch
