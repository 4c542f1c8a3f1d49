// A run with rounds: what an agent does with its own workers when a round ends and another begins.
#include "base/command_options.h"
#include "base/format.h"
#include "base/text.h"
#include "launch/run.h"

#include <csignal>

#include <algorithm>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds notice_of_the_end{1};
// Survivors write why their group has died; most end by themselves sooner.
constexpr std::chrono::milliseconds notice_of_a_round{100};
// The new rank's first step comes before the start of the next process in reserve.
constexpr std::chrono::milliseconds until_the_round_is_under_way{250};
constexpr std::chrono::seconds first_waiting_line{1}, next_waiting_line{10}, next_spare_line{60};

std::string counted(std::size_t number, const char* what) {
  return formatted("{} {}{}", number, what, number == 1 ? "" : "s");
}

bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT ||
         signal == SIGPIPE;
}

}  // namespace

void Agent::Run::watch_rounds(Poller& poller) {
  if (!rounds_) return;
  poller.watch(rounds_->descriptor(), POLLIN, [&] {
    for (RoundEvent& event : rounds_->take_events()) take(std::move(event));
  });
}

void Agent::Run::take(RoundEvent event) {
  switch (event.kind) {
    case RoundEvent::Kind::pause:
      pause_line_ = event.why;
      offer_after_ = Clock::now() + event.pause;
      return;
    case RoundEvent::Kind::gather:
      return gather(event);
    case RoundEvent::Kind::waiting:
      return note_waiting(event.workers);
    case RoundEvent::Kind::begin:
      return begin_round(event.plan);
    case RoundEvent::Kind::spare:
      return note_spare(event.plan);
    case RoundEvent::Kind::reserve:
      has_reserve_ = true;
      fill_reserve_ = Clock::now();
      return;
    case RoundEvent::Kind::over:
      return end_rounds(std::move(event));
  }
}

void Agent::Run::gather(const RoundEvent& event) {
  gathering_for_ = event.round;
  spare_line_.clear();
  if (has_rounds(spec_)) waiting_line_ = Clock::now() + first_waiting_line;
  if (workers_.empty()) return;
  if (state_machine_.cause() < 0) say(formatted("round {} ends: {}", event.round - 1, event.why));
  for (const auto& worker : workers_)
    if (worker->process() != nullptr &&
        (event.workers.contains(worker->name()) || kept_.contains(worker->name())))
      worker->set_standing(Worker::Standing::keeps);
  keepers_limit_ = Clock::now() + spec_.grace;
  state_machine_.end_ranks(Clock::now(), notice_of_a_round);
}

void Agent::Run::note_waiting(const std::set<std::string>& names) {
  if (gathering_for_ < 0) return;
  for (const auto& worker : workers_) {
    if (worker->standing() != Worker::Standing::keeps || worker->process() == nullptr) continue;
    if (!names.contains(worker->name())) continue;
    worker->set_standing(Worker::Standing::waiting);
    state_machine_.left();
  }
}

void Agent::Run::kill_late_keepers(Clock::time_point now) {
  if (!keepers_limit_ || now < *keepers_limit_) return;
  keepers_limit_.reset();
  for (const auto& worker : workers_)
    if (worker->standing() == Worker::Standing::keeps)
      worker->kill(formatted("killed by the agent: it did not leave its round within {}",
                             format_duration(spec_.grace)));
}

// When everything of the last round that does not wait for the next one has ended.
void Agent::Run::offer_if_ready() {
  if (!rounds_) return;
  say_waiting();
  if (gathering_for_ < 0 || run_result_ || asked_to_stop_ != 0 || !problem_.empty()) return;
  if (!workers_.empty() && state_machine_.state() != State::done) return;
  end_leftovers();
  report_end_of_round();
  if (is_pausing()) return;
  Offer offer = rounds_->empty_offer();
  offer.failed = !workers_.empty() && state_machine_.cause() >= 0;
  for (int local = 0; local < spec_.ranks; ++local) {
    Worker* worker = workers_.empty() ? nullptr : workers_[local].get();
    const bool kept = worker != nullptr && worker->process() != nullptr &&
                      worker->standing() == Worker::Standing::waiting;
    offer.workers.push_back(
        {kept ? worker->name() : formatted("{}.{}", own_node(), next_worker_++), kept});
  }
  keepers_limit_.reset();
  rounds_->offer(std::exchange(gathering_for_, -1), offer);
}

// What the ended workers have started must not meet those of the next round.
void Agent::Run::end_leftovers() {
  std::set<pid_t> kept;
  for (const auto& worker : workers_)
    if (sys::Process* process = worker->process()) kept.insert(process->pid());
  for (const auto& worker : reserve_)
    if (sys::Process* process = worker->process()) kept.insert(process->pid());
  if (!workers_.empty()) subreaper_->end_all(Duration::zero(), kept);
}

bool Agent::Run::is_pausing() {
  if (!offer_after_) return false;
  if (!pause_line_.empty()) say(std::exchange(pause_line_, {}));
  waiting_line_ = *offer_after_ + first_waiting_line;
  if (Clock::now() < *offer_after_) return true;
  offer_after_.reset();
  return false;
}

void Agent::Run::report_end_of_round() {
  if (workers_.empty() || state_machine_.cause() < 0 || std::exchange(round_reported_, true))
    return;
  report();
  result_.cause.reset();
}

void Agent::Run::begin_round(const RoundPlan& plan) {
  plan_ = plan;
  state_machine_ = AgentStateMachine(spec_.ranks, grace_of(spec_));
  result_.ends.clear();
  own_failure_.reset();
  kept_.clear();
  waiting_line_.reset();
  told_ = false;
  round_reported_ = false;
  failures_ = {};  // those of the last round are in its report
  const RoundPlan::Node& own = plan.nodes[plan.group_rank(own_node())];
  if (plan.round > 0)
    say(formatted("round {} begins: {} on {}, {} of {} restarts taken", plan.round,
                  counted(static_cast<std::size_t>(plan.ranks()), "rank"),
                  counted(plan.nodes.size(), "node"), plan.restarts, spec_.max_restarts));
  workers_.resize(static_cast<std::size_t>(spec_.ranks));
  std::vector<Worker*> fresh;
  std::vector<Worker*> lost;
  for (int local = 0; local < spec_.ranks; ++local) {
    std::unique_ptr<Worker>& worker = workers_[local];
    const int rank = first_rank() + local;
    if (worker && worker->name() == own.workers[local]) {
      worker->set_rank(rank);
      if (worker->process() == nullptr) lost.push_back(worker.get());
      worker->set_standing(Worker::Standing::plain);
      kept_.insert(worker->name());
      continue;
    }
    worker = fresh_worker(rank, own.workers[local]);
    fresh.push_back(worker.get());
  }
  start_all(fresh);
  // One that has ended well may have seen the round before the agent did.
  for (Worker* worker : lost)
    worker->end() && worker->end()->success() ? note_end(*worker, *worker->end())
                                              : note_lost(*worker);
  if (plan.round > 0) fill_reserve_ = Clock::now() + until_the_round_is_under_way;
}

std::unique_ptr<Worker> Agent::Run::fresh_worker(int rank, const std::string& name) {
  if (std::unique_ptr<Worker> ready = taken_from_reserve()) {
    ready->take_over(rank, name, log_file(rank));
    return ready;
  }
  return std::make_unique<Worker>(rank, name, output_printer_, error_printer_, failures_,
                                  log_file(rank));
}

// It has ended after it was promised for the round.
void Agent::Run::note_lost(const Worker& worker) {
  result_.ends.push_back({.rank = worker.rank(),
                          .pid = worker.pid(),
                          .exit_code = 1,
                          .how = "its end while it waited for the round"});
  state_machine_.ended(worker.rank(), {.code = 1}, Clock::now());
  if (state_machine_.cause() == worker.rank()) note_failure(result_.ends.back());
}

// The result of the run as this node shows it.
RunResult Agent::Run::result_for_this_node(RoundEvent event) const {
  // Without the store it cannot be known whose failure came first.
  if (event.store_lost && own_failure_) return *own_failure_;
  RunResult result = std::move(event.result);
  const bool failed = result.kind == RunResult::Kind::failed;
  if (failed && result.node == own_node() && !own_failure_) {
    result.how = formatted("the other nodes have given this one up ({})", result.how);
    result.node = result.rank = -1;
  }
  return result;
}

void Agent::Run::end_rounds(RoundEvent event) {
  if (plan_.nodes.empty()) plan_ = event.plan;
  run_result_ = result_for_this_node(std::move(event));
  gathering_for_ = -1;
  waiting_line_.reset();
  const bool elsewhere = run_result_->node != own_node();
  if (run_result_->kind == RunResult::Kind::done) return;
  const bool has_failed = run_result_->kind == RunResult::Kind::failed;
  if (has_failed && spec_.max_restarts > 0 && plan_.restarts >= spec_.max_restarts)
    say(formatted("no restart is left: {} of {} are taken", plan_.restarts, spec_.max_restarts));
  if (has_failed && run_result_->exit_code == usage_exit_code && spec_.max_restarts > 0 &&
      plan_.restarts < spec_.max_restarts)
    say("exit code 2 is an error of use: no restart follows");
  if (run_result_->kind == RunResult::Kind::stopped) {
    if (!elsewhere || asked_to_stop_ != 0) return;
    say(formatted("{} was asked to stop ({})", node_name(run_result_->node),
                  sys::signal_name(run_result_->signal)));
    asked_to_stop_ = run_result_->signal;
    if (state_machine_.state() == State::running)
      state_machine_.signalled(run_result_->signal, Clock::now());
  } else if (elsewhere) {
    failure_ = run_result_->node < 0 ? run_result_->how
               : run_result_->rank < 0
                   ? formatted("{} has failed: {}", node_name(run_result_->node), run_result_->how)
                   : formatted("rank {} on {} has failed ({})", run_result_->rank,
                               node_name(run_result_->node), run_result_->how);
  }
  state_machine_.end_ranks(Clock::now(), notice_of_the_end);
  end_keepers();
}

// They were spared when the round ended, and are not any more.
void Agent::Run::end_keepers() {
  for (const auto& worker : workers_) {
    if (worker->standing() != Worker::Standing::keeps) continue;
    keepers_limit_ = Clock::now() + spec_.failure_grace;
    if (sys::Process* process = worker->process()) process->send_to_group(SIGTERM);
  }
}

// While no ranks run that could be told, or while a round ends.
void Agent::Run::ask_rounds_to_stop(int signal) {
  if (!asks_to_stop(signal)) return;
  if (asked_to_stop_ != 0 && state_machine_.state() != State::stopping) interrupted_ = true;
  if (std::exchange(asked_to_stop_, signal) != 0) return;
  told_ = true;
  rounds_->stop({.kind = RunResult::Kind::stopped, .signal = signal, .node = own_node()},
                !spare_line_.empty());
  state_machine_.end_ranks(Clock::now(), Duration::zero());
  end_keepers();
}

void Agent::Run::note_spare(const RoundPlan& plan) {
  spare_line_ = formatted("round {} runs on {}; this node waits until one leaves", plan.round,
                          counted(plan.nodes.size(), "node"));
  waiting_line_ = Clock::now() + first_waiting_line;
}

void Agent::Run::say_waiting() {
  if (!waiting_line_ || Clock::now() < *waiting_line_) return;
  waiting_line_ = Clock::now() + (spare_line_.empty() ? next_waiting_line : next_spare_line);
  if (!spare_line_.empty()) return say(spare_line_);
  if (workers_.empty() || state_machine_.state() == State::done)
    say(formatted("waiting for other nodes: expected {} to {}", least_nodes(spec_.nodes),
                  spec_.nodes.nodes));
}

}  // namespace lockstep::launch
