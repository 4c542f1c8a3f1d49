#include "launch/run.h"

#include "base/check.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "launch/program.h"
#include "sys/high_descriptor.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds leftover_grace{1};

std::string_view value_of(const Environment& environment, std::string_view name) {
  for (const auto& [key, value] : environment)
    if (key == name) return value;
  return {};
}

// Made before anything starts, so that a folder that cannot be written is found first.
std::string log_file(const WorkerSpec& spec, int rank) {
  if (spec.log_folder.empty()) return {};
  return (std::filesystem::path(spec.log_folder) / ("rank-" + std::to_string(rank) + ".log"))
      .string();
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw SystemError("making the log folder " + folder, error.value());
}

}  // namespace

Agent::Run::Run(WorkerSpec spec)
    : spec_(std::move(spec)),
      output_(spec_.output),
      error_(spec_.error),
      output_printer_(output_, output_line_, spec_.prefix),
      error_printer_(error_, error_.same_place(output_) ? output_line_ : error_line_, spec_.prefix),
      state_machine_(spec_.ranks, {.stop = spec_.grace, .failure = spec_.failure_grace}) {
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
  // Signals keep their ordinary effect until all nodes have come, which may take minutes.
  if (spec_.nodes.nodes > 1) {
    WaitingLines lines([this](const std::string& line) { say(line); }, spec_.forward_signals);
    nodes_.emplace(spec_.nodes, spec_.ranks, lines);
  }
  if (spec_.forward_signals) signals_.emplace();
  open_files_.emplace();
  subreaper_.emplace();
  const ScopeExit leave_nothing([&] {
    subreaper_->end_all(Duration::zero());
    subreaper_.reset();
    guard_.reset();
    signals_.reset();
    rendezvous_store_.reset();
    nodes_.reset();
    open_files_.reset();
  });
  if (found)
    begin();
  else
    tell_failure(problem_);
  while (!is_over()) supervise();
  finish();
  return result_;
}

void Agent::Run::begin() {
  try {
    open();
    start_workers();
  } catch (const std::exception& error) {
    if (nodes_) nodes_->give_up(error.what());
    throw;
  }
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
  const auto ranks = static_cast<rlim_t>(spec_.ranks);
  const rlim_t needed = own + ranks * (of_a_rank + (spec_.log_folder.empty() ? 0 : 1));
  check_input(open_files_->most() >= needed,
              "{} ranks: expected a limit of at least {} open files, found {}: raise the hard "
              "limit (ulimit -n), or start fewer ranks",
              spec_.ranks, needed, open_files_->most());
}

void Agent::Run::open() {
  check_limits();
  if (!spec_.log_folder.empty()) make_folder(spec_.log_folder);
  for (int rank = first_rank(); rank < first_rank() + spec_.ranks; ++rank)
    workers_.push_back(std::make_unique<Worker>(rank, output_printer_, error_printer_, failures_,
                                                log_file(spec_, rank)));
  if (nodes_)
    rendezvous_store_.emplace(nodes_->store_address(), nodes_->secret(),
                              nodes_->node_list().run_id);
  else
    rendezvous_store_.emplace(spec_.store_port);
  flight_.emplace(spec_.environment, spec_.log_folder, rendezvous_store_->run_id());
  std::erase_if(spec_.environment,
                [](const auto& entry) { return entry.first == variable::flight_folder; });
  spec_.environment.emplace_back(variable::flight_folder, flight_->path());
}

void Agent::Run::start_workers() {
  this_process_ = sys::with_high_number(sys::open_pidfd(::getpid()));
  const RankSpec place{.ranks = ranks_of_all(),
                       .local_ranks = spec_.ranks,
                       .node = spec_.nodes.node,
                       .nodes = spec_.nodes.nodes,
                       .master_address = nodes_ ? nodes_->node_list().master_address : "127.0.0.1",
                       .master_port = nodes_ ? nodes_->node_list().master_port : free_port(),
                       .run_id = rendezvous_store_->run_id(),
                       .store = rendezvous_store_->store_address(),
                       .agent_descriptor = this_process_.get(),
                       .cores = sys::usable_cores()};
  guard_.emplace(this_process_, marks_of_ranks(place), spec_.error);
  subreaper_->leave_alone(guard_->pid());
  for (const auto& worker : workers_) {
    try {
      start(*worker, place);
    } catch (const SystemError& error) {
      const char* hint =
          error.error_number() == ENOENT ? " (the interpreter that its first line names)" : "";
      problem_ = formatted("rank {}: {}{}", worker->rank(), error.what(), hint);
      say(problem_);
      result_.exit_code = 126;
      tell_failure(problem_);
      state_machine_.could_not_start(worker->rank() - first_rank());
      if (const auto signal = state_machine_.take_signal()) send_to_all(*signal);
      return;
    }
  }
  state_machine_.all_started();
}

void Agent::Run::start(Worker& worker, RankSpec place) {
  const sys::FileDescriptor secret = rendezvous_store_->secret_descriptor();
  place.rank = worker.rank();
  place.local_rank = worker.rank() - first_rank();
  place.secret_descriptor = secret.get();
  worker.start(file_, spec_, place, open_files_->limit_before());
}

void Agent::Run::finish() {
  subreaper_->end_all(leftover_grace);
  for (const auto& worker : workers_) worker->output().finish();
  if (result_.exit_code == 0) result_.exit_code = state_machine_.exit_code();
  if (!report_failure_elsewhere() && state_machine_.cause() >= 0) report();
  say_records();
  drain();
  leave_nodes();
}

void Agent::Run::report() {
  const auto cause =
      std::find_if(result_.ends.begin(), result_.ends.end(),
                   [&](const RankEnd& end) { return end.rank == state_machine_.cause(); });
  result_.cause = *cause;
  if (cause->exit_code == spec_.explained_exit_code) return;
  if (state_machine_.stop_signal() != 0) {
    return say("stopped by " + sys::signal_name(state_machine_.stop_signal()) + "; " +
               describe(result_.ends));
  }
  RankOutput& output = workers_[cause->rank - first_rank()]->output();
  report({.cause = *cause,
          .ranks = ranks_of_all(),
          .where = where(spec_.nodes.node),
          .at = failed_at_,
          .last_lines = output.last_lines().lines(reported_lines),
          .shared = &failures_,
          .log_file = output.log_file(),
          .others = {cause + 1, result_.ends.end()}});
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
  if (!files.empty()) say("what the ranks called last: lockstep report hang " + files);
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
