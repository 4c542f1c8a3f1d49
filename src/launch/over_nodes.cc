// A run on several nodes: each agent tells the others how it went on its own node, and does what
// the first word of all says.
#include "launch/run.h"

#include <lockstep/base/format.h>

#include <algorithm>

namespace lockstep::launch {

namespace {

// For the others to see their ranks end, before node 0 takes the store away.
constexpr std::chrono::seconds time_to_end{5};

}  // namespace

bool Agent::Run::is_over() const {
  return lifecycle_.state() == State::done && (!nodes_ || verdict_ || interrupted_);
}

int Agent::Run::first_rank() const {
  return nodes_ ? nodes_->roster().first_rank(spec_.nodes.node) : 0;
}

int Agent::Run::ranks_of_all() const { return nodes_ ? nodes_->roster().ranks() : spec_.ranks; }

std::string Agent::Run::where(int node) const {
  if (!nodes_) return {};
  return formatted("node {}, host {}", node, nodes_->host(node));
}

void Agent::Run::watch_nodes(Poller& poller) {
  if (!nodes_) return;
  poller.watch(nodes_->descriptor(), POLLIN, [&] {
    if (auto verdict = nodes_->take_verdict()) obey(*std::move(verdict));
  });
}

void Agent::Run::tell_failure(const std::string& how) {
  if (!nodes_ || std::exchange(told_, true)) return;
  own_failure_ = Verdict{.kind = Verdict::Kind::failed,
                         .node = spec_.nodes.node,
                         .exit_code = result_.exit_code,
                         .how = how};
  nodes_->say(*own_failure_);
}

void Agent::Run::tell_failure(const RankEnd& end) {
  if (!nodes_ || std::exchange(told_, true)) return;
  const RankOutput& output = workers_[end.rank - first_rank()]->output();
  own_failure_ = Verdict{.kind = Verdict::Kind::failed,
                         .node = spec_.nodes.node,
                         .exit_code = end.exit_code,
                         .rank = end.rank,
                         .pid = end.pid,
                         .after = end.after,
                         .at = failed_at_,
                         .how = end.how,
                         .log_file = output.log_file(),
                         .last_lines = output.last_lines().lines(reported_lines)};
  nodes_->say(*own_failure_);
}

void Agent::Run::tell_stop() {
  if (!nodes_ || lifecycle_.stop_signal() == 0 || std::exchange(told_, true)) return;
  nodes_->say({.kind = Verdict::Kind::stopped,
               .signal = lifecycle_.stop_signal(),
               .node = spec_.nodes.node});
}

void Agent::Run::tell_done() {
  if (!nodes_ || verdict_ || std::exchange(told_, true)) return;
  nodes_->say_done();
}

void Agent::Run::obey(Verdict verdict) {
  // Of a store that is lost one cannot learn whose failure came first.
  const bool store_lost = verdict.rank < 0 && verdict.node == 0 && spec_.nodes.node != 0;
  verdict_ = store_lost && own_failure_ ? *own_failure_ : std::move(verdict);
  const bool failed = verdict_->kind == Verdict::Kind::failed;
  if (failed && verdict_->node == spec_.nodes.node && !own_failure_) {
    verdict_->how = formatted("the other nodes have given this one up ({})", verdict_->how);
    verdict_->node = verdict_->rank = -1;
  }
  if (verdict_->node == spec_.nodes.node) return;
  told_ = true;
  const std::string node = nodes_->name(verdict_->node);
  if (failed) {
    failure_ = verdict_->node < 0   ? verdict_->how
               : verdict_->rank < 0 ? formatted("{} has failed: {}", node, verdict_->how)
                                    : formatted("rank {} on {} has failed ({})", verdict_->rank,
                                                node, verdict_->how);
    lifecycle_.failed_elsewhere(Clock::now());
  } else if (verdict_->kind == Verdict::Kind::stopped && lifecycle_.state() == State::running) {
    say(formatted("{} was asked to stop ({})", node, sys::signal_name(verdict_->signal)));
    lifecycle_.signalled(verdict_->signal, Clock::now());
  }
}

// False when the cause, if there is one, is on this node.
bool Agent::Run::report_failure_elsewhere() {
  if (!verdict_ || verdict_->kind != Verdict::Kind::failed) return false;
  result_.exit_code = std::max(1, verdict_->exit_code);
  if (verdict_->node == spec_.nodes.node) return own_failure_->rank < 0;  // has been said
  if (verdict_->rank < 0) {
    say(failure_);
    if (!result_.ends.empty()) say("the ranks of this node: " + describe(result_.ends));
    return true;
  }
  const RankEnd cause{.rank = verdict_->rank,
                      .pid = verdict_->pid,
                      .exit_code = verdict_->exit_code,
                      .how = verdict_->how,
                      .after = verdict_->after};
  result_.cause = cause;
  report({.cause = cause,
          .ranks = ranks_of_all(),
          .where = where(verdict_->node),
          .at = verdict_->at,
          .last_lines = verdict_->last_lines,
          .shared = &failures_,
          .log_file = verdict_->log_file,
          .others = result_.ends});
  return true;
}

void Agent::Run::leave_nodes() {
  if (!nodes_) return;
  nodes_->begin_to_leave(Deadline::after(
      time_to_end + (lifecycle_.stop_signal() != 0 ? spec_.grace : spec_.failure_grace)));
  while (!nodes_->have_left() && !interrupted_) {
    Poller poller;
    watch_signals(poller);
    poller.watch(nodes_->descriptor(), POLLIN, [&] { static_cast<void>(nodes_->take_verdict()); });
    poller.wait(Deadline::never());
  }
}

}  // namespace lockstep::launch
