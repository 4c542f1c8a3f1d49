// One run of an agent: the loop that everything it does hangs on.
#pragma once

#include "launch/agent.h"
#include "launch/agent_state.h"
#include "launch/descendants.h"
#include "launch/detection/rank_ends.h"
#include "launch/error_file.h"
#include "launch/flight_folder.h"
#include "launch/guard.h"
#include "launch/hang_watch.h"
#include "launch/poller.h"
#include "launch/printer.h"
#include "launch/rendezvous_store.h"
#include "launch/report.h"
#include "launch/rounds.h"
#include "launch/shared_failures.h"
#include "launch/signals.h"
#include "launch/sink.h"
#include "launch/worker.h"
#include "sys/open_files_limit.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::launch {

inline constexpr std::size_t reported_lines = 20;

[[nodiscard]] Grace grace_of(const WorkerSpec& spec);

class Agent::Run {
 public:
  explicit Run(WorkerSpec spec);
  AgentResult run();
  void deliver(int signal) noexcept;

 private:
  // The phases: run.cc.
  bool find_file();
  void come_together();
  void give_up(const std::string& why);
  void check_limits() const;
  void open();
  [[nodiscard]] LogFile log_file(int rank) const;
  [[nodiscard]] RankSpec place_of_all() const;
  void start_guard();
  void start_workers();
  void start_all(const std::vector<Worker*>& workers);
  void start(Worker& worker, RankSpec place);
  void finish();
  void report();
  [[nodiscard]] const RankEnd& cause_here() const;
  [[nodiscard]] const RankEnd& end_to_report() const;
  [[nodiscard]] std::optional<Witness> witness_of(const RankEnd& cause);
  void write_error_files(const RankEnd& cause);
  void report(const FailureReport& failure);
  void say_records();
  void drain();

  // The loop between them: supervision.cc.
  void supervise();
  Deadline next_wake(Clock::time_point now);
  void watch_streams(Poller& poller, Worker& worker);
  void watch_sinks(Poller& poller);
  void watch_signals(Poller& poller);
  void watch_for_hangs(Poller& poller);
  void watch_living();
  void take_ended();
  void note_end(Worker& worker, sys::ExitStatus status);
  [[nodiscard]] std::string name_of(const Worker& worker) const;
  void note_failure(const RankEnd& end);
  void tell_others_of_end(const RankEnd& end);
  void signalled(int signal);
  [[nodiscard]] bool are_signalled() const;
  void send_to_all(int signal);
  void suspend();
  void say_losses();
  void collect_orphans();
  void say(const std::string& line);

  // What the other nodes have to do with it: over_nodes.cc.
  void tell_failure(const std::string& how);
  void tell_failure(const RankEnd& end);
  void tell_stop();
  void tell_done();
  bool report_failure_elsewhere();
  void leave_nodes();
  [[nodiscard]] bool is_over() const;

  // A run with rounds: over_rounds.cc.
  void watch_rounds(Poller& poller);
  void take(RoundEvent event);
  void gather(const RoundEvent& event);
  void note_waiting(const std::set<std::string>& names);
  void kill_late_keepers(Clock::time_point now);
  void offer_if_ready();
  [[nodiscard]] bool is_pausing();
  void report_end_of_round();
  void end_leftovers();
  void begin_round(const RoundPlan& plan);
  void note_lost(const Worker& worker);
  [[nodiscard]] std::unique_ptr<Worker> fresh_worker(int rank, const std::string& name);
  void end_rounds(RoundEvent event);
  [[nodiscard]] RunResult result_for_this_node(RoundEvent event) const;
  void end_keepers();
  void ask_rounds_to_stop(int signal);
  void note_spare(const RoundPlan& plan);
  void say_waiting();

  // Processes that have no rank yet: over_reserve.cc.
  [[nodiscard]] bool keeps_reserve() const;
  void fill_reserve();
  [[nodiscard]] std::unique_ptr<Worker> taken_from_reserve();
  void take_ended_reserve();
  void end_reserve();

  [[nodiscard]] int own_node() const;
  [[nodiscard]] std::string node_name(int node) const;
  [[nodiscard]] int first_rank() const;
  [[nodiscard]] int ranks_of_all() const;
  [[nodiscard]] std::string where(int node) const;

  WorkerSpec spec_;
  sys::FileDescriptor delivered_, deliver_to_;  // a pipe of signal numbers
  Sink output_, error_;
  OpenLine output_line_, error_line_;
  Printer output_printer_, error_printer_;
  SharedFailures failures_;
  std::optional<FlightFolder> flight_;
  std::optional<SignalQueue> signals_;
  std::optional<sys::RaisedOpenFilesLimit> open_files_;
  std::optional<RankEnds> rank_ends_;  // made when it is first used
  std::optional<Subreaper> subreaper_;
  sys::FileDescriptor this_process_;  // for the ranks, which end when it ends
  std::optional<Guard> guard_;
  std::optional<RendezvousStore> rendezvous_store_;
  std::string file_;     // what to execute
  std::string problem_;  // or why that cannot be
  std::vector<std::unique_ptr<Worker>> workers_;
  AgentStateMachine state_machine_;
  Clock::time_point orphans_seen_;
  std::string failed_at_;  // time of day
  std::string failure_;    // "rank 1 has failed (exit code 3)"
  std::optional<ErrorFolder> errors_;
  std::optional<HangWatch> hang_watch_;

  std::optional<Rounds> rounds_;  // none on one node that has no rounds
  RoundPlan plan_;                // of the newest round that has begun
  int gathering_for_ = -1;        // the round to offer for; -1: none
  std::set<std::string> kept_;    // workers that came over from the round before
  int next_worker_ = 0;
  int asked_to_stop_ = 0;  // the signal
  std::optional<Clock::time_point> keepers_limit_, waiting_line_, offer_after_;
  std::string pause_line_;       // to be said when the round has been reported
  bool round_reported_ = false;  // the failure that has ended the newest round

  std::string spare_line_;    // said now and then while a round runs without this node; else empty
  bool has_reserve_ = false;  // the program can wait in reserve
  std::vector<std::unique_ptr<Worker>> reserve_;   // in the order in which they were started
  std::optional<Clock::time_point> fill_reserve_;  // when it is to be filled up
  int reserve_failures_ = 0;                       // that ended before they were ready

  std::optional<RunResult> run_result_, own_failure_;
  bool told_ = false;  // the other nodes, how it went here
  bool output_loss_said_ = false;
  bool interrupted_ = false;  // a stop was asked for while the last output was being written
  AgentResult result_;
};

}  // namespace lockstep::launch
