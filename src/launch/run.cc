#include "launch/run.h"

#include "base/check.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "launch/commit_folder.h"
#include "launch/program.h"
#include "launch/waiting_lines.h"
#include "sys/high_descriptor.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>
#include <lockstep/store/open.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds leftover_grace{1};
constexpr int beats_until_hung = 5;
constexpr std::chrono::seconds time_to_open{2};

bool was_done(const RunResult& result) { return result.kind == RunResult::Kind::done; }

std::string_view value_of(const Environment& environment, std::string_view name) {
  for (const auto& [key, value] : environment)
    if (key == name) return value;
  return {};
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw SystemError("making the log folder " + folder, error.value());
}

}  // namespace

Grace grace_of(const WorkerSpec& spec) {
  Grace grace{.stop = spec.grace, .failure = spec.failure_grace};
  if (has_rounds(spec)) grace.notice.reset();
  return grace;
}

Agent::Run::Run(WorkerSpec spec)
    : spec_(std::move(spec)),
      output_(spec_.output),
      error_(spec_.error),
      output_printer_(output_, output_line_, spec_.prefix),
      error_printer_(error_, error_.same_place(output_) ? output_line_ : error_line_, spec_.prefix),
      state_machine_(spec_.ranks, grace_of(spec_)) {
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
  if (!found && has_rounds(spec_)) return result_;  // the other nodes go on without this one
  come_together();
  if (spec_.forward_signals) signals_.emplace();
  open_files_.emplace();
  subreaper_.emplace();
  const ScopeExit leave_nothing([&] {
    subreaper_->end_all(Duration::zero());
    subreaper_.reset();
    guard_.reset();
    signals_.reset();
    hang_watch_.reset();
    rank_ends_.reset();
    if (rendezvous_store_) remove_commit_folder(rendezvous_store_->run_id(), ::getpid());
    rendezvous_store_.reset();
    rounds_.reset();
    errors_.reset();
    open_files_.reset();
  });
  try {
    if (found)
      open();
    else
      tell_failure(problem_);
    while (!is_over()) supervise();
  } catch (const std::exception& error) {
    give_up(error.what());
    throw;
  }
  finish();
  return result_;
}

// Signals keep their ordinary effect until all nodes have come, or until the store is there, which
// may take minutes.
void Agent::Run::come_together() {
  if (spec_.nodes.nodes == 1 && !has_rounds(spec_)) return;
  WaitingLines lines([this](const std::string& line) { say(line); }, spec_.forward_signals);
  const NodeSpec& nodes = spec_.nodes;
  lines.wait_for(has_rounds(spec_)
                     ? "the store at " + (nodes.store.empty() ? nodes.rendezvous : nodes.store)
                     : "node 0 at " + nodes.rendezvous);
  rounds_.emplace(nodes, spec_.max_restarts, open_round_store(nodes, spec_.store_port), lines);
}

// Says why this agent ends, and waits a moment until the others know. A run with rounds goes on
// without it.
void Agent::Run::give_up(const std::string& why) {
  if (!rounds_ || has_rounds(spec_)) return;
  tell_failure(why);
  rounds_->wait_for_the_others(Deadline::after(time_to_read), [] { return false; });
}

bool Agent::Run::find_file() {
  const FoundProgram found = find_program(spec_.program, value_of(spec_.environment, "PATH"));
  file_ = found.file;
  problem_ = found.problem;
  if (problem_.empty()) return true;
  say(problem_);
  result_.exit_code = found.exit_code;
  state_machine_.could_not_start(0);
  return false;
}

void Agent::Run::check_limits() const {
  constexpr rlim_t own = 24, of_a_rank = 4;  // while the ranks are being started
  const auto ranks =
      static_cast<rlim_t>(spec_.ranks) + static_cast<rlim_t>(has_rounds(spec_) ? spec_.reserve : 0);
  const rlim_t needed = own + ranks * (of_a_rank + (spec_.log_folder.empty() ? 0 : 1));
  check_input(open_files_->most() >= needed,
              "{} ranks: expected a limit of at least {} open files, found {}: raise the hard "
              "limit (ulimit -n), or start fewer ranks",
              spec_.ranks, needed, open_files_->most());
}

void Agent::Run::open() {
  check_limits();
  if (!spec_.log_folder.empty()) make_folder(spec_.log_folder);
  // Before anything starts, so that a log that cannot be written is found first.
  for (int rank = first_rank(); !rounds_ && rank < first_rank() + spec_.ranks; ++rank)
    workers_.push_back(std::make_unique<Worker>(rank, "", output_printer_, error_printer_,
                                                failures_, log_file(rank)));
  if (rounds_)
    rendezvous_store_.emplace(rounds_->store().address, rounds_->store().secret, rounds_->run_id());
  else
    rendezvous_store_.emplace(spec_.store_port);
  if (spec_.hung_after > Duration::zero())
    hang_watch_.emplace(spec_.hung_after, [store = rendezvous_store_->store_address(),
                                           secret = rendezvous_store_->secret()] {
      return open_store(store, secret, time_to_open);
    });
  errors_.emplace(spec_.log_folder, formatted("{}-{}", rendezvous_store_->run_id(), own_node()));
  flight_.emplace(spec_.environment, spec_.log_folder, rendezvous_store_->run_id());
  std::erase_if(spec_.environment, [](const auto& entry) {
    return entry.first == variable::flight_folder || entry.first == variable::names_lines;
  });
  spec_.environment.emplace_back(variable::flight_folder, flight_->path());
  if (spec_.prefix == PrefixStyle::rank) spec_.environment.emplace_back(variable::names_lines, "1");
  start_guard();
  if (!rounds_) start_workers();
}

LogFile Agent::Run::log_file(int rank) const {
  if (spec_.log_folder.empty()) return {};
  const auto name = std::filesystem::path(spec_.log_folder) / formatted("rank-{}.log", rank);
  return {.name = name.string(), .append = rounds_ && plan_.round > 0};
}

RankSpec Agent::Run::place_of_all() const {
  RankSpec place{.ranks = ranks_of_all(),
                 .local_ranks = spec_.ranks,
                 .node = spec_.nodes.node,
                 .nodes = spec_.nodes.nodes,
                 .agent = own_node(),
                 .max_restarts = spec_.max_restarts,
                 .beat = spec_.hung_after / beats_until_hung,
                 .run_id = rendezvous_store_->run_id(),
                 .store = rendezvous_store_->store_address(),
                 .agent_descriptor = this_process_.get(),
                 .cores = sys::usable_cores()};
  if (rounds_) {
    place.node = plan_.group_rank(own_node());
    place.nodes = static_cast<int>(plan_.nodes.size());
    if (has_rounds(spec_)) place.round = plan_.round;
    place.restart = plan_.restarts;
    place.master_address = plan_.master_address;
    place.master_port = plan_.master_port;
  } else {
    place.master_port = free_port();
  }
  return place;
}

void Agent::Run::start_guard() {
  this_process_ = sys::with_high_number(sys::open_pidfd(::getpid()));
  guard_.emplace(this_process_, marks_of_ranks(place_of_all()), spec_.error,
                 errors_->is_temporary() ? errors_->path() : "");
  subreaper_->leave_alone(guard_->pid());
}

void Agent::Run::start_workers() {
  std::vector<Worker*> workers;
  for (const auto& worker : workers_) workers.push_back(worker.get());
  start_all(workers);
}

void Agent::Run::start_all(const std::vector<Worker*>& workers) {
  const RankSpec place = place_of_all();
  for (std::size_t i = 0; i < workers.size(); ++i) {
    try {
      start(*workers[i], place);
    } catch (const SystemError& error) {
      const char* hint =
          error.error_number() == ENOENT ? " (the interpreter that its first line names)" : "";
      problem_ = formatted("rank {}: {}{}", workers[i]->rank(), error.what(), hint);
      say(problem_);
      result_.exit_code = 126;
      tell_failure(problem_);
      const std::size_t others = workers_.size() - workers.size();  // that live on
      state_machine_.could_not_start(static_cast<int>(others + i));
      if (const auto signal = state_machine_.take_signal()) send_to_all(*signal);
      return;
    }
  }
  state_machine_.all_started();
  watch_living();
}

void Agent::Run::start(Worker& worker, RankSpec place) {
  const sys::FileDescriptor secret = rendezvous_store_->secret_descriptor();
  place.rank = worker.rank();
  place.local_rank = worker.rank() - first_rank();
  place.secret_descriptor = secret.get();
  if (has_rounds(spec_)) place.worker = worker.name();
  place.error_file = errors_->file(std::max(0, place.round), place.rank);
  if (worker.is_in_reserve()) return worker.give_place(place);
  worker.start(file_, spec_, place, open_files_->limit_before());
}

void Agent::Run::finish() {
  end_reserve();
  subreaper_->end_all(leftover_grace);
  for (const auto& worker : workers_) worker->output().finish();
  // The failure of the last round was reported, and would have been followed by another one.
  const bool was_between_rounds = round_reported_ && asked_to_stop_ != 0;
  if (result_.exit_code == 0 && !was_between_rounds) result_.exit_code = state_machine_.exit_code();
  const bool was_cut_short = has_rounds(spec_) || workers_.empty();  // else ranks say how it went
  if (result_.exit_code == 0 && asked_to_stop_ != 0 && was_cut_short &&
      !(run_result_ && was_done(*run_result_)))
    result_.exit_code = 128 + asked_to_stop_;
  if (!report_failure_elsewhere() && state_machine_.cause() >= 0 && !was_between_rounds) report();
  say_records();
  drain();
  leave_nodes();
}

const RankEnd& Agent::Run::cause_here() const {
  return *std::find_if(result_.ends.begin(), result_.ends.end(),
                       [&](const RankEnd& end) { return end.rank == state_machine_.cause(); });
}

// The rank that ended first, unless it was silent because another one speaks for all that fail
// together ("lockstep train: ...").
const RankEnd& Agent::Run::end_to_report() const {
  const RankEnd& cause = cause_here();
  if (failures_.has_complained(cause.rank)) return cause;
  const auto speaker = std::ranges::find_if(result_.ends, [&](const RankEnd& end) {
    return end.exit_code == cause.exit_code && failures_.has_complained(end.rank);
  });
  return speaker == result_.ends.end() ? cause : *speaker;
}

// If the rank that ended first has not said why: one that ended by itself and has.
std::optional<Witness> Agent::Run::witness_of(const RankEnd& cause) {
  const auto output_of = [&](const RankEnd& end) -> const RankOutput& {
    return workers_[end.rank - first_rank()]->output();
  };
  if (cause.exit_code > 128 || output_of(cause).says_why()) return std::nullopt;
  for (const RankEnd& end : result_.ends)
    if (end.exit_code > 0 && end.exit_code <= 128 && output_of(end).says_why())
      return Witness{end, output_of(end).last_lines().lines(reported_lines)};
  return std::nullopt;
}

void Agent::Run::report() {
  const RankEnd* cause = &end_to_report();
  result_.cause = *cause;
  Worker& worker = *workers_[cause->rank - first_rank()];
  std::vector<std::string> recorded = recorded_error(worker.error_file());  // by the rank itself
  if (state_machine_.stop_signal() == 0) write_error_files(*cause);
  if (cause->exit_code == spec_.explained_exit_code) return;
  if (state_machine_.stop_signal() != 0) {
    return say("stopped by " + sys::signal_name(state_machine_.stop_signal()) + "; " +
               describe(result_.ends));
  }
  RankOutput& output = worker.output();
  const RankEnd* first = &cause_here();
  std::vector<RankEnd> others(first, std::as_const(result_.ends).data() + result_.ends.size());
  std::erase_if(others, [&](const RankEnd& end) { return end.rank == cause->rank; });
  report({.cause = *cause,
          .ranks = ranks_of_all(),
          .where = where(own_node()),
          .at = failed_at_,
          .last_lines = output.last_lines().lines(reported_lines),
          .shared = &failures_,
          .log_file = output.log_file(),
          .recorded = std::move(recorded),
          .error_file = errors_->is_temporary() ? std::string() : worker.error_file(),
          .witness = witness_of(*cause),
          .others = std::move(others),
          .ended_together = cause != first});
}

// Its own, where that stays, and the one that this agent's parent has named.
void Agent::Run::write_error_files(const RankEnd& cause) {
  Worker& worker = *workers_[cause.rank - first_rank()];
  const WorkerFailure failure{.end = cause,
                              .round = std::max(0, plan_.round),
                              .host = sys::host_name(),
                              .last_lines = worker.output().last_lines().lines(reported_lines)};
  const std::string problem =
      launch::write_error_files(failure, worker.error_file(), !errors_->is_temporary(),
                                std::string(value_of(spec_.environment, variable::error_file)));
  if (!problem.empty()) say(problem);
}

void Agent::Run::report(const FailureReport& failure) {
  for (const std::string& line : describe(failure)) say(line);
}

// Records of ranks that were asked to stop, or that have ended well all the same, are of no use.
void Agent::Run::say_records() {
  if (!flight_) return;
  if (result_.exit_code == 0 || state_machine_.stop_signal() != 0)
    return flight_->discard(ranks_of_all());
  const std::string files = flight_->records(ranks_of_all());
  if (files.empty()) return flight_->discard(ranks_of_all());
  say("what the ranks called last: lockstep report hang " + files);
}

// Writes what is left, as slowly as the reader takes it, unless the user asks to stop or the reader
// takes nothing at all.
void Agent::Run::drain() {
  const auto pending = [&] { return output_.pending() + error_.pending(); };
  std::size_t left = pending();
  Deadline output_deadline = Deadline::after(spec_.output_timeout);
  while (left > 0 && !interrupted_ && !output_deadline.passed()) {
    Poller poller;
    watch_signals(poller);
    watch_sinks(poller);
    poller.wait(output_deadline);
    if (pending() == left) continue;
    left = pending();
    output_deadline = Deadline::after(spec_.output_timeout);
  }
  if (output_.pending() > 0 && error_.pending() == 0 && !interrupted_)
    say(formatted("the reader of standard output took nothing for {}: {} were dropped",
                  format_duration(spec_.output_timeout),
                  format_bytes(static_cast<std::int64_t>(output_.pending()))));
}

}  // namespace lockstep::launch
