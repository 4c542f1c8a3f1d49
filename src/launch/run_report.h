// What an agent says at the end of a round or of the run, and the files that stay of a failure.
#pragma once

#include "launch/flight_folder.h"
#include "launch/output_relay.h"
#include "launch/rank_processes.h"
#include "launch/report.h"
#include "launch/run_state.h"

#include <optional>
#include <string>

namespace lockstep::launch {

class RunReport {
 public:
  // All of which outlives this.
  RunReport(RunState& run, OutputRelay& relay, const RankProcesses& processes)
      : run_(run), relay_(relay), processes_(processes) {}

  // Tells the ranks where they put their flight records. Before they are started.
  void open(const std::string& run_id);
  // Of the first rank of this node that has failed, or that the ranks were stopped.
  void report();
  // Of a failure on another node. Returns false if the cause, if there is one, is on this node.
  [[nodiscard]] bool report_elsewhere();
  // Names the flight records, or removes them where they are of no use.
  void report_records();

 private:
  [[nodiscard]] const RankEnd& cause_here() const;
  [[nodiscard]] const RankEnd& end_to_report() const;
  [[nodiscard]] std::optional<Witness> witness_of(const RankEnd& cause) const;
  void write_error_files(const RankEnd& cause);
  void say(const FailureReport& failure);

  RunState& run_;
  OutputRelay& relay_;
  const RankProcesses& processes_;
  std::optional<FlightFolder> flight_;
};

}  // namespace lockstep::launch
