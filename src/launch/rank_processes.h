// The processes of an agent: its ranks, its hot spares (the reserve), and their descendants.
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

// One rank, as the agent sees it: its process and its output.
class Worker {
 public:
  // How the worker behaves at the end of a round.
  enum class Standing {
    plain,    // it is ended, and another process is started for the next one
    keeps,    // it leaves the round by itself
    waiting,  // it has left, and waits for the next one
  };

  // `log` as RankOutput.
  Worker(int rank, std::string name, Printer& output, Printer& error, SharedFailures& failures,
         const LogFile& log)
      : rank_(rank), name_(std::move(name)), output_(rank, output, error, failures, log) {}

  // Executes `file` with the arguments and the environment of `spec`. Without a rank (-1) the
  // process is in reserve: the program waits for its place in rank_env::wait_for_place(). Throws
  // SystemError if the process cannot be started.
  void start(const std::string& file, const WorkerSpec& spec, const RankSpec& place,
             rlimit open_files);

  [[nodiscard]] bool is_in_reserve() const { return static_cast<bool>(reserve_); }
  // Returns true if the worker is in reserve and waits for its place.
  [[nodiscard]] bool is_ready();
  // For a worker that is ready: it becomes worker `rank`, and continues with give_place().
  void take_over(int rank, std::string name, const LogFile& log);
  void give_place(const RankSpec& place);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // Sets the rank for the next round.
  void set_rank(int rank) {
    rank_ = rank;
    output_.set_rank(rank);
  }
  [[nodiscard]] Standing standing() const { return standing_; }
  void set_standing(Standing standing) { standing_ = standing; }
  // Kills the process. `why` describes its end in reports: "killed by the agent: ...".
  void kill(const std::string& why);
  // Kills the process if it was stopped at every look for `hung_after`. Looks that are further
  // apart than `longest_pause` do not count.
  void note_look(bool is_stopped, Duration hung_after, Duration longest_pause);
  [[nodiscard]] const std::string& error_file() const { return error_file_; }
  [[nodiscard]] RankOutput& output() { return output_; }
  // Returns the process until it is collected; then null.
  [[nodiscard]] sys::Process* process() { return running_ ? &*process_ : nullptr; }
  // The pid of the last process that was started; 0 if none was.
  [[nodiscard]] int pid() const { return process_ ? process_->pid() : 0; }
  // Returns the exit status of the process once, after it has ended.
  [[nodiscard]] std::optional<sys::ExitStatus> take_end();
  // Returns the exit status at any time after that; nothing while the process runs.
  [[nodiscard]] const std::optional<sys::ExitStatus>& end() const { return end_; }
  [[nodiscard]] RankEnd describe_end(sys::ExitStatus status, Clock::time_point now) const;

 private:
  int rank_;
  std::string name_;
  Standing standing_ = Standing::plain;
  std::string killed_why_;
  std::string error_file_;
  RankOutput output_;
  std::optional<sys::Process> process_;
  sys::FileDescriptor reserve_;     // to it, while it has no place
  sys::FileDescriptor in_reserve_;  // its own, while it is started
  bool is_ready_ = false;
  bool running_ = false;
  std::optional<sys::ExitStatus> end_;
  Clock::time_point started_;
  std::optional<HeartbeatMonitor> life_;  // of this process, since the first look
  int looks_ = 0;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

// The file that a program's name resolves to, as in a shell.
struct FoundProgram {
  std::string file;     // what to execute, when problem is empty
  std::string problem;  // one line: why it cannot be
  int exit_code = 0;    // 127: not found; 126: found but cannot be executed
};

// A name with a slash is a path. Other names are searched in `path` (as in PATH), then in the
// current folder.
[[nodiscard]] FoundProgram find_program(const std::string& name, std::string_view path);

// Returns the GPUs of a rank, for CUDA_VISIBLE_DEVICES; empty if the ranks see the same GPUs as
// their agent. Throws BadInput if there are too few for all ranks of this node.
[[nodiscard]] std::string gpus_of(const WorkerSpec& spec, int local_rank);

// In a run that may have more rounds, SIGTERM is sent only after the agents have decided.
[[nodiscard]] inline Grace grace_of(const WorkerSpec& spec) {
  Grace grace{.stop = spec.grace, .failure = spec.failure_grace};
  if (may_have_more_rounds(spec)) grace.notice.reset();
  return grace;
}

// State that the parts of an agent's run share: the request, the progress, and the outcome.
struct RunState {
  explicit RunState(WorkerSpec of) : spec(std::move(of)), machine(spec.ranks, grace_of(spec)) {}

  WorkerSpec spec;
  int node = 0;                 // the number of this agent
  RoundPlan plan;               // of the newest round that has begun
  Workers workers;              // by local rank; none before the first round
  AgentStateMachine machine;    // of the ranks of that round
  int gathering_for = -1;       // the round to offer for; -1: none
  bool round_reported = false;  // the failure that has ended the newest round
  int asked_to_stop = 0;        // the signal
  bool interrupted = false;     // a stop was asked for while the last output was being written

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

// Processes in reserve: started before there is a rank for them. A process that takes the place of
// another one must be wanted then.
class Reserve {
 public:
  Reserve(int most, OutputRelay& relay) : most_(most), relay_(relay) {}

  // The program can wait in reserve: from now on there are such processes.
  void allow();
  // When the reserve is to be filled up.
  void fill_at(Clock::time_point when) { fill_at_ = when; }
  [[nodiscard]] std::optional<Clock::time_point> next() const { return fill_at_; }
  // Fills it up with workers that `start` starts, if that is due and `is_wanted`.
  void fill(bool is_wanted, const std::function<void(Worker&)>& start);
  // Returns a worker that is ready; null if no worker is. A worker that is not ready would not
  // start earlier than a new process for the rank.
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
  int failures_ = 0;  // that ended before they were ready
};

// All processes of a run on this node.
class RankProcesses {
 public:
  // `run`, `relay` and `store` must outlive this object. Raises the limit of open files, and adopts
  // orphans.
  RankProcesses(RunState& run, OutputRelay& relay, const RoundStore& store);
  // Ends what is left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Before anything is started that executes `file`: makes folders and starts the guard. BadInput,
  // SystemError as Agent::run().
  void open(std::string file, const ErrorFolder& errors);
  [[nodiscard]] Reserve& reserve() { return reserve_; }

  // A worker for a rank of the round, from the reserve if one is ready; not started.
  [[nodiscard]] std::unique_ptr<Worker> fresh_worker(int rank, const std::string& name);
  // Starts these workers of the round. If a rank cannot be started, returns the problem and the
  // number of workers that were started; otherwise nothing.
  struct Failure {
    int started = 0;
    std::string problem;
  };
  [[nodiscard]] std::optional<Failure> start(const std::vector<Worker*>& workers);

  // Reads output, and wakes up when a process ends.
  void watch(Poller& poller);
  // Returns the workers of the round that have ended. Killed workers come first: a killed worker is
  // more likely to be the cause of another worker's error than its effect.
  [[nodiscard]] std::vector<std::pair<Worker*, sys::ExitStatus>> take_ended();
  // Tells ranks that wait in init() that a rank has ended well; of any other end they learn by
  // their own.
  void tell_end(const RankEnd& end);
  // To the ranks; with `only_plain` not to those that leave the round by themselves.
  void send(int signal, bool only_plain);
  // Stops them and this process, until SIGCONT.
  void suspend();
  // Starts processes in reserve if they are due, kills ranks that have hung, and collects orphans.
  void tend();
  // Ends the processes that the ended workers have left, before the next round starts.
  void end_leftovers();
  // Ends all processes except the agent's own, after the ranks have ended.
  void end_all();

 private:
  [[nodiscard]] RankSpec place_of_all() const;
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
  Reserve reserve_;
  std::optional<Subreaper> subreaper_;
  sys::FileDescriptor this_process_;  // for the ranks, which end when it ends
  std::optional<Guard> guard_;
  Clock::time_point orphans_seen_, hangs_seen_;
};

}  // namespace lockstep::launch
