#include "launch/agent.h"

#include "base/check.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "launch/node_messages.h"
#include "launch/node_ranks.h"
#include "launch/output_relay.h"
#include "launch/rank_processes.h"
#include "launch/round_session.h"
#include "launch/round_source.h"
#include "launch/round_store.h"
#include "launch/rounds.h"
#include "launch/run_report.h"
#include "launch/signals.h"
#include "rank_env/commit_folder.h"
#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds longest_wait{1};
// Time for the other agents to see their ranks end before node 0 closes the store.
constexpr std::chrono::seconds time_to_end{5};

bool was_done(const std::optional<RunResult>& result) {
  return result && result->kind == RunResult::Kind::done;
}

// Checks the values that programs can pass to start_copies(), and names that are resolved later.
WorkerSpec checked(WorkerSpec spec) {
  check_input(spec.ranks >= 1, "--ranks: expected at least 1, found {}", spec.ranks);
  check_input(spec.grace >= Duration::zero(), "--grace: expected 0s or more, found {}",
              format_duration(spec.grace));
  check_input(spec.max_restarts >= 0, "--max-restarts: expected 0 or more, found {}",
              spec.max_restarts);
  check_input(spec.hung_after >= Duration::zero(), "--hung-after: expected 0s or more, found {}",
              format_duration(spec.hung_after));
  if (spec.nodes.nodes > 1 || !spec.nodes.store.empty()) static_cast<void>(endpoint_of(spec.nodes));
  static_cast<void>(gpus_of(spec, 0));
  return spec;
}

}  // namespace

// One run of an agent: its main loop and all of its state.
class Agent::Run {
 public:
  explicit Run(WorkerSpec spec);
  AgentResult run();
  void deliver(int signal) noexcept;

 private:
  bool find_file();
  void come_together();
  void make_parts();
  void open();
  void give_up(const std::string& why);
  void leave_nothing();
  [[nodiscard]] bool is_over() const;
  void finish();
  void leave_nodes();

  void supervise();
  [[nodiscard]] Deadline next_wake(Clock::time_point now);
  void watch_signals(Poller& poller);
  void signalled(int signal);
  [[nodiscard]] bool are_signalled() const;
  void send_to_all(int signal);

  RunState run_;
  OutputRelay relay_;
  sys::FileDescriptor delivered_, deliver_to_;  // a pipe of signal numbers
  std::string file_;                            // what to execute

  // Exist during run(). Each is declared after the members that it uses.
  std::unique_ptr<RoundSource> source_;
  std::optional<SignalQueue> signals_;
  std::optional<RunReport> report_;
  std::optional<RankProcesses> processes_;
  std::optional<RoundSession> session_;
};

Agent::Agent(WorkerSpec spec) : run_(std::make_unique<Run>(checked(std::move(spec)))) {}

Agent::~Agent() = default;

AgentResult Agent::run() { return run_->run(); }

void Agent::deliver(int signal) noexcept { run_->deliver(signal); }

Agent::Run::Run(WorkerSpec spec) : run_(std::move(spec)), relay_(run_.spec) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw SystemError("making the agent's signal pipe", errno);
  delivered_.reset(ends[0]);
  deliver_to_.reset(ends[1]);
}

void Agent::Run::deliver(int signal) noexcept {
  const int error_before = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(deliver_to_.get(), &number, 1);
  errno = error_before;
}

AgentResult Agent::Run::run() {
  const SignalActions actions;
  const bool found = find_file();
  // Other nodes, if any, continue without this node.
  if (!found && (may_have_more_rounds(run_.spec) || run_.spec.nodes.nodes == 1)) return run_.result;
  const ScopeExit ended([&] { leave_nothing(); });
  come_together();
  make_parts();
  try {
    if (found)
      open();
    else
      session_->tell_failure(run_.problem);
    while (!is_over()) supervise();
  } catch (const std::exception& error) {
    give_up(error.what());
    throw;
  }
  finish();
  return run_.result;
}

bool Agent::Run::find_file() {
  const FoundProgram found =
      find_program(run_.spec.program, value_of(run_.spec.environment, "PATH"));
  file_ = found.file;
  run_.problem = found.problem;
  if (run_.problem.empty()) return true;
  relay_.log_line(run_.problem);
  run_.result.exit_code = found.exit_code;
  run_.machine.could_not_start(0);
  return false;
}

// Signals keep their ordinary effect until all nodes have joined, or until the store is available,
// which may take minutes.
void Agent::Run::come_together() {
  const WorkerSpec& spec = run_.spec;
  const NodeSpec& nodes = spec.nodes;
  if (nodes.nodes == 1 && !may_have_more_rounds(spec)) {
    source_ = std::make_unique<OneRound>(serve_store());
    return;
  }
  const sys::RaisedOpenFilesLimit open_files;  // many nodes may connect to a store of this process
  WaitingLines lines([this](const std::string& line) { relay_.log_line(line); },
                     spec.forward_signals);
  lines.wait_for(may_have_more_rounds(spec)
                     ? "the store at " + (nodes.store.empty() ? nodes.rendezvous : nodes.store)
                     : "node 0 at " + nodes.rendezvous);
  const Deadline deadline = Deadline::after(nodes.join_timeout);
  source_ = std::make_unique<Rounds>(nodes, spec.max_restarts, open_round_store(nodes, deadline),
                                     deadline, lines);
}

void Agent::Run::make_parts() {
  run_.node = source_->node();
  if (run_.spec.forward_signals) signals_.emplace();
  report_.emplace(run_, relay_);
  processes_.emplace(run_, relay_, source_->store());
  session_.emplace(run_, relay_, *processes_, *report_, *source_);
}

// A single node starts its ranks here; several nodes must agree first.
void Agent::Run::open() {
  report_->open(source_->store().run_id);
  processes_->open(file_, report_->errors());
  session_->take_events();
  session_->go_on();
  session_->take_events();
}

// Publishes the reason why this agent ends, and waits briefly so that the other agents can read it.
// If the run may have more rounds, does nothing: the run continues without this agent.
void Agent::Run::give_up(const std::string& why) {
  if (may_have_more_rounds(run_.spec)) return;
  session_->tell_failure(why);
  source_->wait_for_the_others(Deadline::after(time_to_read), [] { return false; });
}

void Agent::Run::leave_nothing() {
  session_.reset();
  processes_.reset();
  report_.reset();
  signals_.reset();
  if (source_) rank_env::remove_commit_folder(source_->store().run_id, ::getpid());
  source_.reset();
}

bool Agent::Run::is_over() const {
  const bool none_lives = run_.machine.state() == State::done || run_.workers.empty();
  return none_lives && (run_.run_result || run_.interrupted);
}

void Agent::Run::finish() {
  processes_->end_all();
  AgentResult& result = run_.result;
  const int asked = run_.asked_to_stop;
  // The failure of the last round was reported, and another round would have followed.
  const bool was_between_rounds = run_.round_reported && asked != 0;
  if (result.exit_code == 0 && !was_between_rounds) result.exit_code = run_.machine.exit_code();
  // Otherwise the ranks' exit codes determine the result.
  const bool was_cut_short =
      may_have_more_rounds(run_.spec) || run_.workers.empty() || run_.machine.stop_signal() == 0;
  if (result.exit_code == 0 && asked != 0 && was_cut_short && !was_done(run_.run_result))
    result.exit_code = 128 + asked;
  if (!report_->report_elsewhere() && run_.machine.cause() >= 0 && !was_between_rounds)
    report_->report();
  report_->report_records();
  relay_.drain([this](Poller& poller) { watch_signals(poller); }, run_.interrupted);
  leave_nodes();
}

void Agent::Run::leave_nodes() {
  const WorkerSpec& spec = run_.spec;
  const Deadline limit = Deadline::after(
      time_to_end + (run_.machine.stop_signal() != 0 ? spec.grace : spec.failure_grace));
  source_->wait_for_the_others(limit, [this] {
    Poller poller;
    watch_signals(poller);
    poller.wait(Deadline::after(Duration::zero()));
    return run_.interrupted;
  });
}

void Agent::Run::supervise() {
  Poller poller;
  watch_signals(poller);
  relay_.watch(poller);
  processes_->watch(poller);
  // After the workers' events, because a new round replaces the workers.
  poller.watch(source_->descriptor(), POLLIN, [this] { session_->take_events(); });
  poller.wait(next_wake(Clock::now()));

  for (const auto& [worker, status] : processes_->take_ended()) session_->note_end(*worker, status);
  run_.machine.time_is(Clock::now());
  if (const auto signal = run_.machine.take_signal()) send_to_all(*signal);
  session_->go_on();
  processes_->tend();
  if (relay_.log_losses(run_.outputs())) signalled(SIGPIPE);
}

Deadline Agent::Run::next_wake(Clock::time_point now) {
  Deadline wake = Deadline::after(longest_wait);
  for (const auto& next : {run_.machine.next(), processes_->hot_spares().next()})
    if (next) wake = wake.or_sooner(Deadline::after(*next - now));
  return wake.or_sooner(session_->next_wake(now))
      .or_sooner(OutputRelay::show_unfinished(run_.outputs(), now));
}

void Agent::Run::watch_signals(Poller& poller) {
  poller.watch(delivered_.get(), POLLIN, [&] {
    unsigned char signal;
    while (::read(delivered_.get(), &signal, 1) == 1) signalled(signal);
  });
  if (!signals_) return;
  poller.watch(signals_->descriptor(), POLLIN, [&] {
    for (int signal : signals_->take()) signalled(signal);
  });
}

void Agent::Run::signalled(int signal) {
  if (signal == SIGTSTP) return processes_->suspend();
  if (!run_.run_result && !are_signalled()) return session_->ask_to_stop(signal);
  if (run_.machine.state() == State::done) {
    run_.interrupted = true;
    return;
  }
  run_.machine.signalled(signal, Clock::now());
  if (run_.machine.stop_signal() != 0) session_->ask_to_stop(run_.machine.stop_signal());
  if (const auto due = run_.machine.take_signal()) send_to_all(*due);
}

// Returns true if a signal must be forwarded to running ranks. The ranks of a failed round are
// terminated in any case.
bool Agent::Run::are_signalled() const {
  const State state = run_.machine.state();
  return state == State::running || state == State::stopping ||
         (state == State::failed && !may_have_more_rounds(run_.spec));
}

void Agent::Run::send_to_all(int signal) {
  const bool ends_round = run_.rendezvous_for >= 0 && (signal == SIGTERM || signal == SIGKILL);
  if (run_.machine.state() == State::failed && signal == SIGTERM && !ends_round)
    relay_.log_line(run_.failure + "; ending the others");
  processes_->send(signal, ends_round);
}

}  // namespace lockstep::launch
