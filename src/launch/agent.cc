#include <lockstep/launch/agent.h>

#include "launch/run.h"

#include <lockstep/base/check.h>

namespace lockstep::launch {

namespace {

WorkerSpec checked(WorkerSpec spec) {
  check_input(spec.ranks >= 1, "number of ranks: expected at least 1, found {}", spec.ranks);
  check_input(!spec.program.empty(), "no program to run was named");
  check_input(spec.grace >= Duration::zero() && spec.failure_grace >= Duration::zero(),
              "grace period: expected 0 seconds or more");
  check_input(spec.store_port >= 0 && spec.store_port <= 65535,
              "port of the store: expected 0 to 65535, found {}", spec.store_port);
  return spec;
}

}  // namespace

Agent::Agent(WorkerSpec spec) : run_(std::make_unique<Run>(checked(std::move(spec)))) {}

Agent::~Agent() = default;

AgentResult Agent::run() { return run_->run(); }

void Agent::deliver(int signal) noexcept { run_->deliver(signal); }

}  // namespace lockstep::launch
