#include "launch/round_session.h"

#include "base/format.h"
#include "base/text.h"
#include "launch/signals.h"
#include "sys/program.h"

#include <csignal>
#include <ctime>

#include <algorithm>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds notice_of_the_end{1};
// Time for surviving ranks to print why their group has failed; most end sooner by themselves.
constexpr std::chrono::milliseconds notice_of_a_round{100};
// Start the next hot spare only after the first step of the new rank.
constexpr std::chrono::milliseconds until_the_round_is_under_way{250};
constexpr std::chrono::seconds first_waiting_line{1}, next_waiting_line{10}, next_spare_line{60};

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return formatted("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

std::string node_name(int node, const RunState& run, const RoundSource& source) {
  if (!may_have_more_rounds(run.spec))
    return formatted("node {} (host {})", node, source.host(node));
  const int group_rank = run.plan.group_rank(node);
  return group_rank < 0
             ? "a node"
             : formatted("node {} (host {})", group_rank, run.plan.nodes[group_rank].host);
}

// Returns the result of the run that this node reports.
RunResult result_for_this_node(RoundEvent event, const RunState& run) {
  // Without the store, the order of failures on different nodes is unknown.
  if (event.store_lost && run.own_failure) return *run.own_failure;
  RunResult result = std::move(event.result);
  const bool failed = result.kind == RunResult::Kind::failed;
  if (failed && result.node == run.node && !run.own_failure) {
    result.how = formatted("the other nodes have excluded this one ({})", result.how);
    result.node = result.rank = -1;
  }
  return result;
}

}  // namespace

void RoundSession::take_events() {
  for (RoundEvent& event : source_.take_events()) take(std::move(event));
}

Deadline RoundSession::next_wake(Clock::time_point now) const {
  Deadline wake = Deadline::never();
  for (const auto& next : {survivors_limit_, join_after_})
    if (next) wake = wake.or_sooner(Deadline::after(*next - now));
  return wake;
}

void RoundSession::take(RoundEvent event) {
  switch (event.kind) {
    case RoundEvent::Kind::pause:
      pause_line_ = event.why;
      join_after_ = Clock::now() + event.pause;
      return;
    case RoundEvent::Kind::rendezvous:
      return begin_rendezvous(event);
    case RoundEvent::Kind::waiting:
      return note_waiting(event.workers);
    case RoundEvent::Kind::begin:
      return begin_round(event.plan);
    case RoundEvent::Kind::spare:
      spare_line_ = formatted("round {} runs on {}; this node waits until one leaves",
                              event.plan.round, counted(std::ssize(event.plan.nodes), "node"));
      waiting_line_ = Clock::now() + first_waiting_line;
      return;
    case RoundEvent::Kind::hot_spares:
      return processes_.hot_spares().allow();
    case RoundEvent::Kind::over:
      return end_rounds(std::move(event));
  }
}

void RoundSession::begin_rendezvous(const RoundEvent& event) {
  run_.rendezvous_for = event.round;
  offered_for_ = -1;
  node_was_lost_ = event.node_was_lost;
  spare_line_.clear();
  if (may_have_more_rounds(run_.spec))
    waiting_line_ = Clock::now() + first_waiting_line;
  else if (run_.spec.nodes.nodes > 1)  // all nodes have joined
    waiting_line_ = Clock::now() + next_waiting_line;
  if (run_.workers.empty()) return;
  if (run_.machine.cause() < 0 || node_was_lost_)
    relay_.log_line(formatted("round {} ends: {}", event.round - 1, event.why));
  for (const auto& worker : run_.workers)
    if (worker->process() != nullptr &&
        (event.workers.contains(worker->name()) || kept_.contains(worker->name())))
      worker->set_survival(Worker::Survival::survivor);
  survivors_limit_ = Clock::now() + run_.spec.grace;
  run_.machine.end_ranks(Clock::now(), notice_of_a_round);
}

void RoundSession::note_waiting(const std::set<std::string>& names) {
  if (run_.rendezvous_for < 0) return;
  for (const auto& worker : run_.workers) {
    if (worker->survival() != Worker::Survival::survivor || worker->process() == nullptr) continue;
    if (!names.contains(worker->name())) continue;
    worker->set_survival(Worker::Survival::waiting);
    run_.machine.left();
  }
}

void RoundSession::go_on() {
  if (survivors_limit_ && Clock::now() >= *survivors_limit_) {
    survivors_limit_.reset();
    for (const auto& worker : run_.workers)
      if (worker->survival() == Worker::Survival::survivor)
        worker->kill(formatted("killed by the agent: it did not leave its round within {}",
                               format_duration(run_.spec.grace)));
  }
  const bool is_done = run_.machine.state() == State::done && run_.machine.cause() < 0 &&
                       run_.rendezvous_for < 0 && !run_.workers.empty();
  if (is_done && !run_.run_result && !std::exchange(told_, true)) source_.done(run_.plan.round);
  log_waiting();
  join_if_ready();
}

void RoundSession::join_if_ready() {
  if (run_.rendezvous_for < 0 || run_.run_result || run_.asked_to_stop != 0 ||
      !run_.problem.empty())
    return;
  if (!run_.workers.empty() && run_.machine.state() != State::done) return;
  processes_.end_leftovers();
  const bool has_failed = !run_.workers.empty() && run_.machine.cause() >= 0;
  if (has_failed && !std::exchange(run_.round_reported, true)) {
    report_.report();
    run_.result.cause.reset();
  }
  if (is_pausing()) return;
  JoinRequest request = source_.empty_join_request();
  request.failed = has_failed && !node_was_lost_;
  for (int local = 0; local < run_.spec.ranks; ++local) {
    Worker* worker = run_.workers.empty() ? nullptr : run_.workers[local].get();
    const bool kept = worker != nullptr && worker->process() != nullptr &&
                      worker->survival() == Worker::Survival::waiting;
    request.workers.push_back(
        {kept ? worker->name() : formatted("{}.{}", run_.node, next_worker_++), kept});
  }
  survivors_limit_.reset();
  offered_for_ = std::exchange(run_.rendezvous_for, -1);
  source_.request_join(offered_for_, request);
}

bool RoundSession::is_pausing() {
  if (!join_after_) return false;
  if (!pause_line_.empty()) relay_.log_line(std::exchange(pause_line_, {}));
  waiting_line_ = *join_after_ + first_waiting_line;
  if (Clock::now() < *join_after_) return true;
  join_after_.reset();
  return false;
}

void RoundSession::begin_round(const RoundPlan& plan) {
  offered_for_ = run_.rendezvous_for = -1;
  run_.plan = plan;
  run_.machine = AgentStateMachine(run_.spec.ranks, grace_of(run_.spec));
  run_.result.ends.clear();
  run_.own_failure.reset();
  kept_.clear();
  waiting_line_.reset();
  told_ = run_.asked_to_stop != 0;
  run_.round_reported = false;
  relay_.failures() = {};  // failures of the last round have been reported
  const RoundPlan::Node& own = plan.nodes[plan.group_rank(run_.node)];
  if (plan.round > 0)
    relay_.log_line(formatted("round {} begins: {} on {}, {} of {} restarts used", plan.round,
                              counted(plan.ranks(), "rank"),
                              counted(std::ssize(plan.nodes), "node"), plan.restarts,
                              run_.spec.max_restarts));
  run_.workers.resize(static_cast<std::size_t>(run_.spec.ranks));
  std::vector<Worker*> fresh;
  std::vector<Worker*> lost;
  for (int local = 0; local < run_.spec.ranks; ++local) {
    std::unique_ptr<Worker>& worker = run_.workers[local];
    const int rank = run_.first_rank() + local;
    if (worker && worker->name() == own.workers[local]) {
      worker->set_rank(rank);
      if (worker->process() == nullptr) lost.push_back(worker.get());
      worker->set_survival(Worker::Survival::none);
      kept_.insert(worker->name());
      continue;
    }
    worker = processes_.fresh_worker(rank, own.workers[local]);
    fresh.push_back(worker.get());
  }
  start(fresh);
  // A worker that ended successfully may have seen the new round before the agent did.
  for (Worker* worker : lost)
    worker->end() && worker->end()->success() ? note_end(*worker, *worker->end())
                                              : note_lost(*worker);
  if (plan.round > 0) processes_.hot_spares().fill_at(Clock::now() + until_the_round_is_under_way);
  // The request to stop came after this node's join request: these ranks have not heard of it.
  if (run_.asked_to_stop != 0 && run_.machine.state() == State::running)
    run_.machine.signalled(run_.asked_to_stop, Clock::now());
}

void RoundSession::start(const std::vector<Worker*>& fresh) {
  const auto failure = processes_.start(fresh);
  if (!failure) return run_.machine.all_started();
  run_.problem = failure->problem;
  relay_.log_line(run_.problem);
  run_.result.exit_code = 126;
  tell_failure(run_.problem);
  const std::size_t others = run_.workers.size() - fresh.size();  // still running
  run_.machine.could_not_start(static_cast<int>(others) + failure->started);
  if (const auto signal = run_.machine.take_signal()) processes_.send(*signal, false);
}

// Handles a worker that ended after it had been offered for the round.
void RoundSession::note_lost(const Worker& worker) {
  run_.result.ends.push_back({.rank = worker.rank(),
                              .pid = worker.pid(),
                              .exit_code = 1,
                              .how = "an end before the round began"});
  run_.machine.ended(worker.rank(), {.code = 1}, Clock::now());
  if (run_.machine.cause() == worker.rank()) note_failure(run_.result.ends.back());
}

void RoundSession::end_rounds(RoundEvent event) {
  told_ = true;
  if (run_.plan.nodes.empty()) run_.plan = event.plan;
  run_.run_result = result_for_this_node(std::move(event), run_);
  offered_for_ = run_.rendezvous_for = -1;
  waiting_line_.reset();
  const bool elsewhere = run_.run_result->node != run_.node;
  if (run_.run_result->kind == RunResult::Kind::done) return;
  const bool has_failed = run_.run_result->kind == RunResult::Kind::failed;
  if (has_failed && run_.spec.max_restarts > 0 && run_.plan.restarts >= run_.spec.max_restarts)
    relay_.log_line(formatted("no restart is left: {} of {} were used", run_.plan.restarts,
                              run_.spec.max_restarts));
  if (has_failed && run_.run_result->exit_code == usage_exit_code && run_.spec.max_restarts > 0 &&
      run_.plan.restarts < run_.spec.max_restarts)
    relay_.log_line("exit code 2 means wrong usage: the program is not restarted");
  if (run_.run_result->kind == RunResult::Kind::stopped) {
    if (!elsewhere || run_.asked_to_stop != 0) return;
    relay_.log_line(formatted("{} was asked to stop ({})",
                              node_name(run_.run_result->node, run_, source_),
                              sys::signal_name(run_.run_result->signal)));
    run_.asked_to_stop = run_.run_result->signal;
    if (run_.machine.state() == State::running)
      run_.machine.signalled(run_.run_result->signal, Clock::now());
  } else if (elsewhere) {
    run_.failure =
        run_.run_result->node < 0 ? run_.run_result->how
        : run_.run_result->rank < 0
            ? formatted("{} has failed: {}", node_name(run_.run_result->node, run_, source_),
                        run_.run_result->how)
            : formatted("rank {} on {} has failed ({})", run_.run_result->rank,
                        node_name(run_.run_result->node, run_, source_), run_.run_result->how);
  }
  run_.machine.end_ranks(Clock::now(), notice_of_the_end);
  end_survivors();
}

// Terminates the workers that were spared when the round ended.
void RoundSession::end_survivors() {
  for (const auto& worker : run_.workers) {
    if (worker->survival() != Worker::Survival::survivor) continue;
    survivors_limit_ = Clock::now() + run_.spec.failure_grace;
    if (sys::Process* process = worker->process()) process->send_to_group(SIGTERM);
  }
}

// Called while no ranks run that could get the signal, or while a round ends.
void RoundSession::ask_to_stop(int signal) {
  if (!asks_to_stop(signal)) return;
  if (run_.asked_to_stop != 0 && run_.machine.state() != State::stopping) run_.interrupted = true;
  if (std::exchange(run_.asked_to_stop, signal) != 0) return;
  told_ = true;
  source_.stop({.kind = RunResult::Kind::stopped, .signal = signal, .node = run_.node},
               !spare_line_.empty());
  run_.machine.end_ranks(Clock::now(), Duration::zero());
  end_survivors();
}

void RoundSession::log_waiting() {
  if (!waiting_line_ || Clock::now() < *waiting_line_) return;
  waiting_line_ = Clock::now() + (spare_line_.empty() ? next_waiting_line : next_spare_line);
  if (!spare_line_.empty()) return relay_.log_line(spare_line_);
  if (!may_have_more_rounds(run_.spec))
    relay_.log_line("waiting for the agents of the other nodes, which have arrived, to be ready");
  else if (run_.workers.empty() || run_.machine.state() == State::done)
    relay_.log_line(formatted("waiting for other nodes: the run needs {} to {}",
                              least_nodes(run_.spec.nodes), run_.spec.nodes.nodes));
}

void RoundSession::note_end(Worker& worker, sys::ExitStatus status) {
  const auto now = Clock::now();
  worker.output().finish();
  if (worker.survival() == Worker::Survival::waiting) {
    // Without a plan, offers a new worker in its place. Otherwise, begin_round() handles the end.
    if (!status.success() && offered_for_ >= 0)
      run_.rendezvous_for = std::exchange(offered_for_, -1);
    return;
  }
  run_.result.ends.push_back(worker.describe_end(status, now));
  run_.machine.ended(worker.rank(), status, now);
  if (run_.machine.cause() == worker.rank()) note_failure(run_.result.ends.back());
  if (status.success()) processes_.tell_end(run_.result.ends.back());
}

void RoundSession::note_failure(const RankEnd& end) {
  run_.failed_at = time_of_day();
  run_.failure = formatted("rank {} has failed ({})", end.rank, end.how);
  if (std::exchange(told_, true)) return;
  const RankOutput& output = run_.worker(end.rank).output();
  run_.own_failure = RunResult{.kind = RunResult::Kind::failed,
                               .node = run_.node,
                               .exit_code = end.exit_code,
                               .rank = end.rank,
                               .pid = end.pid,
                               .after = end.after,
                               .at = run_.failed_at,
                               .how = end.how,
                               .log_file = output.log_file(),
                               .last_lines = output.last_lines().lines(reported_lines)};
  source_.fail(run_.plan, *run_.own_failure);
}

void RoundSession::tell_failure(const std::string& how) {
  if (std::exchange(told_, true)) return;
  run_.own_failure = RunResult{.kind = RunResult::Kind::failed,
                               .node = run_.node,
                               .exit_code = run_.result.exit_code,
                               .how = how};
  source_.end_run(*run_.own_failure);
}

}  // namespace lockstep::launch
