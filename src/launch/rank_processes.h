// The processes of an agent: its ranks, its hot spares, and the descendants of both.
#pragma once

#include "launch/agent.h"
#include "launch/agent_state.h"
#include "launch/heartbeat_monitor.h"
#include "launch/leftovers.h"
#include "launch/node_messages.h"
#include "launch/output_relay.h"
#include "launch/round_store.h"
#include "launch/signals.h"
#include "rank_env/rank_ends.h"
#include "sys/file_descriptor.h"
#include "sys/process.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launch {

class ErrorFolder;

// The process and the output of one rank or hot spare.
class Worker {
 public:
  // How the worker behaves at the end of a round.
  enum class Survival {
    none,      // it is terminated, and a new process is started for the next round
    survivor,  // it leaves the round by itself
    waiting,   // it has left, and waits for the next round
  };

  // `log`: as for RankOutput.
  Worker(int rank, std::string name, Printer& output, Printer& error, SharedFailures& failures,
         const LogFile& log)
      : rank_(rank), name_(std::move(name)), output_(rank, output, error, failures, log) {}

  // Executes `file` with the arguments and the environment of `spec`. Without a rank (-1) the
  // process is a hot spare: the program waits for its rank in rank_env::wait_for_assignment().
  // Throws SystemError if the process cannot be started.
  void start(const std::string& file, const WorkerSpec& spec, const RankSpec& place,
             rlimit open_files);

  [[nodiscard]] bool is_hot_spare() const { return static_cast<bool>(spare_socket_); }
  // Returns true if the worker is a hot spare and waits for its rank.
  [[nodiscard]] bool is_ready();
  // Makes a ready hot spare worker `rank`. Call assign_rank() next, which sends it the rank.
  void take_over(int rank, std::string name, const LogFile& log);
  void assign_rank(const RankSpec& place);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Sets the rank for the next round.
  void set_rank(int rank) {
    rank_ = rank;
    output_.set_rank(rank);
  }
  [[nodiscard]] Survival survival() const { return survival_; }
  void set_survival(Survival survival) { survival_ = survival; }
  // Kills the process. `why` describes its end in reports: "killed by the agent: ...".
  void kill(const std::string& why);
  // Records one check of the process. Kills the process if all checks during `hung_after` found it
  // stopped. Checks that are further apart than `longest_pause` do not count.
  void note_look(bool is_stopped, Duration hung_after, Duration longest_pause);
  [[nodiscard]] const std::string& error_file() const { return error_file_; }
  [[nodiscard]] RankOutput& output() { return output_; }
  // Returns the process; null after take_end() has returned its status.
  [[nodiscard]] sys::Process* process() { return running_ ? &*process_ : nullptr; }
  // Returns the pid of the last process that was started; 0 if there was none.
  [[nodiscard]] int pid() const { return process_ ? process_->pid() : 0; }
  // Returns the exit status of the process once, after it has ended.
  [[nodiscard]] std::optional<sys::ExitStatus> take_end();
  // Returns the exit status after take_end() has returned it; std::nullopt before.
  [[nodiscard]] const std::optional<sys::ExitStatus>& end() const { return end_; }
  [[nodiscard]] RankEnd describe_end(sys::ExitStatus status, Clock::time_point now) const;

 private:
  int rank_;
  std::string name_;
  Survival survival_ = Survival::none;
  std::string killed_why_;
  std::string error_file_;
  RankOutput output_;
  std::optional<sys::Process> process_;
  sys::FileDescriptor spare_socket_;             // to a hot spare without a rank
  sys::FileDescriptor spare_socket_of_process_;  // the other end, during start()
  bool is_ready_ = false;
  bool running_ = false;
  std::optional<sys::ExitStatus> end_;
  Clock::time_point started_;
  std::optional<HeartbeatMonitor> life_;  // of this process, since its first check
  int looks_ = 0;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

// The file that a program's name resolves to, as in a shell.
struct FoundProgram {
  std::string file;     // what to execute, if `problem` is empty
  std::string problem;  // one line: why it cannot be executed
  int exit_code = 0;    // 127: not found; 126: found but cannot be executed
};

// A name with a slash is a path. Other names are searched in `path` (as in PATH), then in the
// current folder.
[[nodiscard]] FoundProgram find_program(const std::string& name, std::string_view path);

// Returns the GPUs of a rank, for CUDA_VISIBLE_DEVICES; empty if the ranks see the same GPUs as
// their agent. Throws BadInput if there are too few for all ranks of this node.
[[nodiscard]] std::string gpus_of(const WorkerSpec& spec, int local_rank);

// If the run may have more rounds, SIGTERM is sent only after the agents have decided how to react
// to the failure.
[[nodiscard]] inline Grace grace_of(const WorkerSpec& spec) {
  Grace grace{.stop = spec.grace, .failure = spec.failure_grace};
  if (may_have_more_rounds(spec)) grace.notice.reset();
  return grace;
}

// The state that the parts of an agent's run share: request, progress and result.
struct RunState {
  explicit RunState(WorkerSpec of) : spec(std::move(of)), machine(spec.ranks, grace_of(spec)) {}

  WorkerSpec spec;
  int node = 0;                 // the number of this agent
  RoundPlan plan;               // of the newest round that has begun
  Workers workers;              // by local rank; empty before the first round
  AgentStateMachine machine;    // of the ranks of that round
  int rendezvous_for = -1;      // the round to join; -1: none
  bool round_reported = false;  // the failure that ended the newest round
  int asked_to_stop = 0;        // the signal
  bool interrupted = false;     // a stop was requested while the last output was written

  std::string problem;    // why no rank can be started
  std::string failure;    // "rank 1 has failed (exit code 3)"
  std::string failed_at;  // time of day
  std::optional<RunResult> run_result, own_failure;
  AgentResult result;

  [[nodiscard]] int first_rank() const {
    return plan.first_rank(std::max(0, plan.group_rank(node)));
  }
  [[nodiscard]] std::vector<RankOutput*> outputs() const {
    std::vector<RankOutput*> outputs;
    for (const auto& worker : workers) outputs.push_back(&worker->output());
    return outputs;
  }
  [[nodiscard]] Worker& worker(int rank) const { return *workers[rank - first_rank()]; }
};

// Hot spares: processes that are started before there is a rank for them.
class HotSpares {
 public:
  HotSpares(int most, OutputRelay& relay) : most_(most), relay_(relay) {}

  // Call it when the program has announced that it supports hot spares: they are started from now
  // on.
  void allow();
  // Sets the time at which missing hot spares are started.
  void fill_at(Clock::time_point when) { fill_at_ = when; }
  [[nodiscard]] std::optional<Clock::time_point> next() const { return fill_at_; }
  // If that time has come and `is_wanted`, starts the missing hot spares with `start`.
  void fill(bool is_wanted, const std::function<void(Worker&)>& start);
  // Returns a ready hot spare, or null if no hot spare is ready. A hot spare that is not ready has
  // no advantage over a new process.
  [[nodiscard]] std::unique_ptr<Worker> take();
  void take_ended();
  void end();
  // In the order in which they were started.
  [[nodiscard]] const Workers& workers() const { return workers_; }

 private:
  const int most_;
  OutputRelay& relay_;
  bool is_allowed_ = false;
  Workers workers_;
  std::optional<Clock::time_point> fill_at_;
  int failures_ = 0;  // hot spares that ended before they were ready
};

// All processes of a run on this node.
class RankProcesses {
 public:
  // `run`, `relay` and `store` must outlive this object. Raises the limit of open files and adopts
  // orphans.
  RankProcesses(RunState& run, OutputRelay& relay, const RoundStore& store);
  // Kills all remaining processes.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Call it before start(): starts the orphan reaper. `file` is the file that ranks execute. Throws
  // BadInput and SystemError like Agent::run().
  void open(std::string file, const ErrorFolder& errors);
  [[nodiscard]] HotSpares& hot_spares() { return hot_spares_; }

  // Returns a worker for a rank of the round: a hot spare if one is ready, otherwise a worker that
  // is not started.
  [[nodiscard]] std::unique_ptr<Worker> fresh_worker(int rank, const std::string& name);
  // Starts these workers of the round. If a rank cannot be started, returns the problem and the
  // number of workers that were started; otherwise std::nullopt.
  struct Failure {
    int started = 0;
    std::string problem;
  };
  [[nodiscard]] std::optional<Failure> start(const std::vector<Worker*>& workers);

  // Makes the poller read output and wake up when a process ends.
  void watch(Poller& poller);
  // Returns the workers of the round that have ended. Killed workers come first: a killed worker is
  // more likely to be the cause of another worker's error than its effect.
  [[nodiscard]] std::vector<std::pair<Worker*, sys::ExitStatus>> take_ended();
  // Informs ranks that wait in init() that a rank has exited with status 0. (Other exits end the
  // run or the round.)
  void tell_end(const RankEnd& end);
  // Sends the signal to the ranks; if `without_survivors`, not to ranks that leave the round by
  // themselves.
  void send(int signal, bool without_survivors);
  // Stops all ranks, hot spares and this process until SIGCONT.
  void suspend();
  // Starts hot spares that are due, kills ranks that hang, and collects orphans.
  void tend();
  // Terminates the processes that ended workers have left. Call it before the next round starts.
  void end_leftovers();
  // Terminates all processes except the agent's own. Call it after the ranks have ended.
  void end_all();

 private:
  [[nodiscard]] RankSpec spec_of_all() const;
  void start(Worker& worker, RankSpec place);
  void look_for_hangs();
  [[nodiscard]] std::vector<sys::Process*> living() const;

  RunState& run_;
  OutputRelay& relay_;
  const RoundStore& store_;
  std::string file_;  // what to execute
  sys::RaisedOpenFilesLimit open_files_;
  const ErrorFolder* errors_ = nullptr;          // after open()
  std::optional<rank_env::RankEnds> rank_ends_;  // made when it is first used
  HotSpares hot_spares_;
  std::optional<Subreaper> subreaper_;
  sys::FileDescriptor this_process_;  // a pidfd; ranks end when this process ends
  std::optional<OrphanReaper> orphan_reaper_;
  Clock::time_point orphans_seen_, hangs_seen_;
};

}  // namespace lockstep::launch
