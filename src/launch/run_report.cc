#include "launch/run_report.h"

#include "base/format.h"
#include "launch/environment.h"
#include "sys/topology.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::launch {

namespace {

std::string where(const RoundPlan& plan, int node) {
  if (plan.nodes.size() < 2) return {};
  const int group_rank = plan.group_rank(node);
  return formatted("node {}, host {}", group_rank,
                   group_rank < 0 ? "unknown" : plan.nodes[group_rank].host);
}

}  // namespace

void RunReport::open(const std::string& run_id) {
  Environment& environment = run_.spec.environment;
  flight_.emplace(environment, run_.spec.log_folder, run_id);
  std::erase_if(environment, [](const auto& entry) {
    return entry.first == variable::flight_folder || entry.first == variable::names_lines;
  });
  environment.emplace_back(variable::flight_folder, flight_->path());
  if (run_.spec.prefix == PrefixStyle::rank) environment.emplace_back(variable::names_lines, "1");
}

const RankEnd& RunReport::cause_here() const {
  return *std::ranges::find(run_.result.ends, run_.machine.cause(), &RankEnd::rank);
}

// The rank that ended first, unless it was silent because another one speaks for all that fail
// together ("lockstep train: ...").
const RankEnd& RunReport::end_to_report() const {
  const RankEnd& cause = cause_here();
  const SharedFailures& failures = relay_.failures();
  if (failures.has_complained(cause.rank)) return cause;
  const auto speaker = std::ranges::find_if(run_.result.ends, [&](const RankEnd& end) {
    return end.exit_code == cause.exit_code && failures.has_complained(end.rank);
  });
  return speaker == run_.result.ends.end() ? cause : *speaker;
}

// If the rank that ended first has not said why: one that ended by itself and has.
std::optional<Witness> RunReport::witness_of(const RankEnd& cause) const {
  const auto output_of = [&](const RankEnd& end) -> const RankOutput& {
    return run_.worker(end.rank).output();
  };
  if (cause.exit_code > 128 || output_of(cause).says_why()) return std::nullopt;
  for (const RankEnd& end : run_.result.ends)
    if (end.exit_code > 0 && end.exit_code <= 128 && output_of(end).says_why())
      return Witness{end, output_of(end).last_lines().lines(reported_lines)};
  return std::nullopt;
}

void RunReport::report() {
  AgentResult& result = run_.result;
  const RankEnd* cause = &end_to_report();
  result.cause = *cause;
  Worker& worker = run_.worker(cause->rank);
  std::vector<std::string> recorded = recorded_error(worker.error_file());  // by the rank itself
  const int stop_signal = run_.machine.stop_signal();
  if (stop_signal == 0) write_error_files(*cause);
  if (cause->exit_code == run_.spec.explained_exit_code) return;
  if (stop_signal != 0) {
    return relay_.say("stopped by " + sys::signal_name(stop_signal) + "; " + describe(result.ends));
  }
  RankOutput& output = worker.output();
  const RankEnd* first = &cause_here();
  std::vector<RankEnd> others(first, std::as_const(result.ends).data() + result.ends.size());
  std::erase_if(others, [&](const RankEnd& end) { return end.rank == cause->rank; });
  say({.cause = *cause,
       .ranks = run_.plan.ranks(),
       .where = where(run_.plan, run_.node),
       .at = run_.failed_at,
       .last_lines = output.last_lines().lines(reported_lines),
       .shared = &relay_.failures(),
       .log_file = output.log_file(),
       .recorded = std::move(recorded),
       .error_file = processes_.errors().is_temporary() ? std::string() : worker.error_file(),
       .witness = witness_of(*cause),
       .others = std::move(others),
       .ended_together = cause != first});
}

// Its own, where that stays, and the one that this agent's parent has named.
void RunReport::write_error_files(const RankEnd& cause) {
  Worker& worker = run_.worker(cause.rank);
  const WorkerFailure failure{.end = cause,
                              .round = run_.plan.round,
                              .host = sys::host_name(),
                              .last_lines = worker.output().last_lines().lines(reported_lines)};
  const std::string problem =
      launch::write_error_files(failure, worker.error_file(), !processes_.errors().is_temporary(),
                                std::string(value_of(run_.spec.environment, variable::error_file)));
  if (!problem.empty()) relay_.say(problem);
}

bool RunReport::report_elsewhere() {
  const auto& told = run_.run_result;
  AgentResult& result = run_.result;
  if (!told || told->kind != RunResult::Kind::failed) return false;
  result.exit_code = std::max(1, told->exit_code);
  if (told->node == run_.node && run_.own_failure)
    return run_.own_failure->rank < 0;  // has been said
  if (told->rank < 0) {
    relay_.say(run_.failure);
    if (!result.ends.empty()) relay_.say("the ranks of this node: " + describe(result.ends));
    return true;
  }
  const RankEnd cause{.rank = told->rank,
                      .pid = told->pid,
                      .exit_code = told->exit_code,
                      .how = told->how,
                      .after = told->after};
  result.cause = cause;
  say({.cause = cause,
       .ranks = run_.plan.ranks(),
       .where = where(run_.plan, told->node),
       .at = told->at,
       .last_lines = told->last_lines,
       .shared = &relay_.failures(),
       .log_file = told->log_file,
       .others = result.ends});
  return true;
}

void RunReport::say(const FailureReport& failure) {
  for (const std::string& line : describe(failure)) relay_.say(line);
}

// Records of ranks that were asked to stop, or that have ended well all the same, are of no use.
void RunReport::report_records() {
  if (!flight_) return;
  const int ranks = run_.plan.ranks();
  if (run_.result.exit_code == 0 || run_.machine.stop_signal() != 0) return flight_->discard(ranks);
  const std::string files = flight_->records(ranks);
  if (files.empty()) return flight_->discard(ranks);
  relay_.say("what the ranks called last: lockstep report hang " + files);
}

}  // namespace lockstep::launch
