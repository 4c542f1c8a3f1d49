// The processes of an agent: its ranks, those in reserve, and what they have started.
#pragma once

#include "launch/descendants.h"
#include "launch/detection/rank_ends.h"
#include "launch/error_file.h"
#include "launch/guard.h"
#include "launch/hang_watch.h"
#include "launch/output_relay.h"
#include "launch/poller.h"
#include "launch/round_store.h"
#include "launch/run_state.h"
#include "launch/worker.h"
#include "sys/open_files_limit.h"
#include "sys/process.h"

#include <lockstep/base/deadline.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launch {

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
  // One that is ready; null if there is none: one that is not ready is no further than one that is
  // started for its rank.
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
  // Of this run, all of which outlives this. Raises the limit of open files, and adopts orphans.
  RankProcesses(RunState& run, OutputRelay& relay, const RoundStore& store);
  // Ends what is left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Before anything is started that executes `file`: makes folders and starts the guard. BadInput,
  // SystemError as Agent::run().
  void open(std::string file);
  [[nodiscard]] const ErrorFolder& errors() const { return *errors_; }
  [[nodiscard]] Reserve& reserve() { return reserve_; }

  // A worker for a rank of the round, from the reserve if one is ready; not started.
  [[nodiscard]] std::unique_ptr<Worker> fresh_worker(int rank, const std::string& name);
  // Starts these workers of the round. Returns the rank that could not be started and why, with the
  // number of those that could; nothing if all were.
  struct Failure {
    int started = 0;
    std::string problem;
  };
  [[nodiscard]] std::optional<Failure> start(const std::vector<Worker*>& workers);

  // Reads output, and wakes up when a process ends or gives no sign of life.
  void watch(Poller& poller);
  // Those of the round that have ended: first what was killed, which is the likelier cause of
  // another's error than the other way round.
  [[nodiscard]] std::vector<std::pair<Worker*, sys::ExitStatus>> take_ended();
  // Tells ranks that wait in init() that a rank has ended well; of any other end they learn by
  // their own.
  void tell_end(const RankEnd& end);
  // To the ranks; with `only_plain` not to those that leave the round by themselves.
  void send(int signal, bool only_plain);
  // Stops them and this process, until SIGCONT.
  void suspend();
  // Starts processes in reserve if they are due, and collects orphans.
  void tend();
  // What the ended workers have started must not meet those of the next round.
  void end_leftovers();
  // All processes but the agent's own, when the ranks have ended.
  void end_all();

 private:
  [[nodiscard]] RankSpec place_of_all() const;
  void start(Worker& worker, RankSpec place);
  void watch_for_hangs(Poller& poller);
  void watch_living();
  [[nodiscard]] std::vector<sys::Process*> living() const;

  RunState& run_;
  OutputRelay& relay_;
  const RoundStore& store_;
  std::string file_;  // what to execute
  sys::RaisedOpenFilesLimit open_files_;
  std::optional<ErrorFolder> errors_;
  std::optional<RankEnds> rank_ends_;  // made when it is first used
  std::optional<HangWatch> hang_watch_;
  Reserve reserve_;
  std::optional<Subreaper> subreaper_;
  sys::FileDescriptor this_process_;  // for the ranks, which end when it ends
  std::optional<Guard> guard_;
  Clock::time_point orphans_seen_;
};

}  // namespace lockstep::launch
