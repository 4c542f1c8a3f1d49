// What an agent does with its own workers when a round ends and another begins, and what it tells
// the other agents.
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
  // All of which outlives this.
  RoundSession(RunState& run, OutputRelay& relay, RankProcesses& processes, RunReport& report,
               RoundSource& source)
      : run_(run), relay_(relay), processes_(processes), report_(report), source_(source) {}

  // Does what the source's events ask for, which may begin a round with other workers.
  void take_events();
  // Does what is due: kills workers that do not leave their round in time, says that all have ended
  // well, and offers for the next round when everything of the last one that does not wait for it
  // has ended.
  void go_on();
  // When go_on() must be called at the latest, if nothing else happens.
  [[nodiscard]] Deadline next_wake(Clock::time_point now) const;

  // A rank of this node has ended.
  void note_end(Worker& worker, sys::ExitStatus status);
  // This node cannot go on. `how` is for the others, and has been said here.
  void tell_failure(const std::string& how);
  // While no ranks run that could be told, or while a round ends.
  void ask_to_stop(int signal);

 private:
  void take(RoundEvent event);
  void gather(const RoundEvent& event);
  void note_waiting(const std::set<std::string>& names);
  void offer_if_ready();
  [[nodiscard]] bool is_pausing();
  void begin_round(const RoundPlan& plan);
  void start(const std::vector<Worker*>& fresh);
  void note_lost(const Worker& worker);
  void note_failure(const RankEnd& end);
  void end_rounds(RoundEvent event);
  void end_keepers();
  void say_waiting();

  RunState& run_;
  OutputRelay& relay_;
  RankProcesses& processes_;
  RunReport& report_;
  RoundSource& source_;
  std::set<std::string> kept_;  // workers that came over from the round before
  int next_worker_ = 0;
  std::optional<Clock::time_point> keepers_limit_, waiting_line_, offer_after_;
  std::string pause_line_;  // to be said when the round has been reported
  std::string spare_line_;  // said now and then while a round runs without this node; else empty
  bool told_ = false;       // the other nodes, how it went here
};

}  // namespace lockstep::launch
