#include "launch/run.h"

#include "launch/program.h"
#include "launch/report.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>
#include <lockstep/base/scope_exit.h>

#include <fcntl.h>
#include <lockstep/base/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace lockstep::launch {

namespace {

constexpr std::size_t reported_lines = 20;
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
      lifecycle_(spec_.ranks, {.stop = spec_.grace, .failure = spec_.failure_grace}) {
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
  const IgnoredBrokenPipes broken_pipes;
  if (spec_.forward_signals) signals_.emplace();
  adoption_.emplace();
  const ScopeExit leave_nothing([&] {
    adoption_->end_all(Duration::zero());
    adoption_.reset();
    signals_.reset();
    meeting_.reset();
  });
  if (!find_file()) return result_;
  open();
  start_workers();
  while (lifecycle_.state() != State::done) supervise();
  finish();
  return result_;
}

bool Agent::Run::find_file() {
  const FoundProgram found = find_program(spec_.program, value_of(spec_.environment, "PATH"));
  file_ = found.file;
  if (found.problem.empty()) return true;
  say(found.problem);
  result_.exit_code = found.exit_code;
  drain();
  return false;
}

void Agent::Run::open() {
  if (!spec_.log_folder.empty()) make_folder(spec_.log_folder);
  for (int rank = 0; rank < spec_.ranks; ++rank)
    workers_.push_back(
        std::make_unique<Worker>(rank, output_printer_, error_printer_, log_file(spec_, rank)));
  meeting_.emplace(spec_.store_port);
}

void Agent::Run::start_workers() {
  const RankPlace place{.ranks = spec_.ranks,
                        .master_port = free_port(),
                        .run_id = meeting_->run_id(),
                        .store = meeting_->store_address(),
                        .cores = sys::usable_cores()};
  for (const auto& worker : workers_) {
    try {
      start(*worker, place);
    } catch (const SystemError& error) {
      const char* hint =
          error.error_number() == ENOENT ? " (the interpreter that its first line names)" : "";
      say(formatted("rank {}: {}{}", worker->rank(), error.what(), hint));
      result_.exit_code = 126;
      lifecycle_.could_not_start(worker->rank());
      if (const auto signal = lifecycle_.take_signal()) send_to_all(*signal);
      return;
    }
  }
  lifecycle_.all_started();
}

void Agent::Run::start(Worker& worker, RankPlace place) {
  const sys::FileDescriptor secret = meeting_->secret_descriptor();
  place.rank = worker.rank();
  place.secret_descriptor = secret.get();
  worker.start(file_, spec_, place);
}

void Agent::Run::finish() {
  adoption_->end_all(leftover_grace);
  for (const auto& worker : workers_) worker->output().finish();
  if (result_.exit_code == 0) result_.exit_code = lifecycle_.exit_code();
  if (lifecycle_.cause() >= 0) report();
  drain();
}

void Agent::Run::report() {
  const auto cause =
      std::find_if(result_.ends.begin(), result_.ends.end(),
                   [&](const RankEnd& end) { return end.rank == lifecycle_.cause(); });
  result_.cause = *cause;
  if (cause->exit_code == spec_.explained_exit_code) return;
  if (lifecycle_.stop_signal() != 0) {
    return say("stopped by " + sys::signal_name(lifecycle_.stop_signal()) + "; " +
               describe(result_.ends));
  }
  RankOutput& output = workers_[cause->rank]->output();
  const std::vector<std::string> lines =
      describe({.cause = *cause,
                .ranks = spec_.ranks,
                .at = failed_at_,
                .last_lines = output.last_lines().lines(reported_lines),
                .log_file = output.log_file(),
                .others = {cause + 1, result_.ends.end()}});
  for (const std::string& line : lines) say(line);
}

// Writes what is left, as slowly as the reader takes it, unless the user asks to stop.
void Agent::Run::drain() {
  while (output_.pending() + error_.pending() > 0 && !interrupted_) {
    Poller poller;
    watch_signals(poller);
    watch_sinks(poller);
    poller.wait(Deadline::never());
  }
}

}  // namespace lockstep::launch
