// What the parts of an agent's run share: what was asked for, how far it has come, how it goes.
#pragma once

#include "launch/agent.h"
#include "launch/agent_state.h"
#include "launch/node_messages.h"
#include "launch/round_plan.h"
#include "launch/worker.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::launch {

// In a run that may have more rounds SIGTERM waits for the agents' decision.
[[nodiscard]] inline Grace grace_of(const WorkerSpec& spec) {
  Grace grace{.stop = spec.grace, .failure = spec.failure_grace};
  if (may_have_more_rounds(spec)) grace.notice.reset();
  return grace;
}

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
  [[nodiscard]] Worker& worker(int rank) const { return *workers[rank - first_rank()]; }
};

}  // namespace lockstep::launch
