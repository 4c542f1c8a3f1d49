// An agent's side of a round: manages its own workers when a round ends and the next begins, and
// informs the other agents.
#pragma once

#include "launch/output_relay.h"
#include "launch/rank_processes.h"
#include "launch/round_source.h"
#include "launch/run_report.h"

#include <lockstep/base/deadline.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::launch {

class RoundSession {
 public:
  // All arguments must outlive this object.
  RoundSession(RunState& run, OutputRelay& relay, RankProcesses& processes, RunReport& report,
               RoundSource& source)
      : run_(run), relay_(relay), processes_(processes), report_(report), source_(source) {}

  // Handles the source's events; may begin a round with other workers.
  void take_events();
  // Does the work that is due: kills workers that do not leave their round in time, announces that
  // all workers have ended successfully, and sends the join request for the next round once all
  // processes of the last round have ended or wait for the next round.
  void go_on();
  // Returns the latest time for the next call of go_on() if nothing else happens.
  [[nodiscard]] Deadline next_wake(Clock::time_point now) const;

  // Call when a rank of this node has ended.
  void note_end(Worker& worker, sys::ExitStatus status);
  // Announces that this node cannot continue. `how` is for the other nodes; this node must have
  // printed it already.
  void tell_failure(const std::string& how);
  // Call if no ranks run that could get the signal, or while a round ends.
  void ask_to_stop(int signal);

 private:
  void take(RoundEvent event);
  void begin_rendezvous(const RoundEvent& event);
  void note_waiting(const std::set<std::string>& names);
  void join_if_ready();
  [[nodiscard]] bool is_pausing();
  void begin_round(const RoundPlan& plan);
  void start(const std::vector<Worker*>& fresh);
  void note_lost(const Worker& worker);
  void note_failure(const RankEnd& end);
  void end_rounds(RoundEvent event);
  void end_survivors();
  void log_waiting();

  RunState& run_;
  OutputRelay& relay_;
  RankProcesses& processes_;
  RunReport& report_;
  RoundSource& source_;
  std::set<std::string> kept_;  // workers that came from the previous round
  int next_worker_ = 0;
  int offered_for_ = -1;        // the round of a join request that has no plan yet; -1: none
  bool node_was_lost_ = false;  // the loss of a node ended the last round
  std::optional<Clock::time_point> survivors_limit_, waiting_line_, join_after_;
  std::string pause_line_;  // printed after the round's report
  std::string spare_line_;  // printed periodically while a round runs without this node
  bool told_ = false;       // this node's outcome has been published
};

}  // namespace lockstep::launch
