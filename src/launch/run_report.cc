#include "launch/run_report.h"

#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/bounded_json.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace lockstep::launch {

std::string describe(const std::vector<RankEnd>& ends) {
  std::map<std::string, std::vector<int>> by_end;
  for (const RankEnd& end : ends) by_end[end.how].push_back(end.rank);
  std::vector<std::string> parts;
  for (auto& [how, ranks] : by_end) {
    std::sort(ranks.begin(), ranks.end());
    parts.push_back(rank_list(ranks) + ": " + how);
  }
  return join(parts, "; ");
}

namespace {

std::vector<int> sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Returns a prefix that is long enough to identify the sentence.
std::string beginning(const std::string& sentence) {
  constexpr std::size_t most = 60;
  return sentence.size() <= most ? sentence : sentence.substr(0, most) + "...";
}

// Returns true if exactly one failure was shown, and only by that rank.
bool is_all_of(const std::vector<SharedFailures::Failure>& failures, int rank) {
  return failures.size() == 1 && failures[0].ranks == std::vector<int>{rank};
}

// Adds the error file's text, unless it repeats the sentence that the rank has printed.
void add_recorded(const RunFailure& report, std::vector<std::string>& lines) {
  const auto is_recorded = [&](const SharedFailures::Failure& failure) {
    return report.recorded == std::vector<std::string>{failure.sentence};
  };
  if (report.recorded.empty()) return;
  if (report.shared && std::ranges::any_of(report.shared->failures(), is_recorded)) return;
  lines.push_back("its error file says:");
  for (const std::string& line : report.recorded) lines.push_back("  | " + line);
}

void add_last_lines(const RunFailure& report, std::vector<std::string>& lines) {
  if (report.last_lines.empty()) {
    lines.push_back("it had printed nothing");
    return;
  }
  std::vector<std::string> own;
  for (const std::string& line : report.last_lines)
    if (!report.shared || !report.shared->is_repeated(line)) own.push_back("  | " + line);
  if (own.empty()) return;
  lines.push_back("its last lines:");
  lines.insert(lines.end(), own.begin(), own.end());
}

}  // namespace

std::vector<std::string> describe(const RunFailure& report) {
  const RankEnd& cause = report.cause;
  std::vector<std::string> lines;
  const std::string verb =
      cause.exit_code > 128 && cause.how.starts_with("killed") ? "was " : "ended with ";
  const std::string where = report.where.empty() ? "" : report.where + ", ";
  const bool says_all = report.shared && is_all_of(report.shared->failures(), cause.rank);
  lines.push_back(formatted("rank {} of {} ({}pid {}) {}{} at {}, after {}{}", cause.rank,
                            report.ranks, where, cause.pid, verb, cause.how, report.at,
                            format_duration(cause.after), says_all ? ", as shown above" : ""));
  add_last_lines(report, lines);
  add_recorded(report, lines);
  if (!report.log_file.empty()) lines.push_back("its log: " + report.log_file);
  if (!report.error_file.empty()) lines.push_back("its error file: " + report.error_file);
  if (report.shared && !says_all) {
    const std::vector<SharedFailures::Failure>& failures = report.shared->failures();
    for (const SharedFailures::Failure& failure : failures)
      lines.push_back(rank_list(sorted(failure.ranks)) + " failed as shown above" +
                      (failures.size() > 1 ? ": " + beginning(failure.sentence) : ""));
  }
  if (report.witness) {
    lines.push_back(formatted("rank {} ended with {} and had said:", report.witness->end.rank,
                              report.witness->end.how));
    for (const std::string& line : report.witness->last_lines) lines.push_back("  | " + line);
  }
  if (!report.others.empty())
    lines.push_back(formatted("the {} ended {} it: {}",
                              report.where.empty() ? "others" : "ranks of this node",
                              report.ended_together ? "with" : "after", describe(report.others)));
  return lines;
}

namespace fs = std::filesystem;

// File times have the resolution of the kernel's tick.
constexpr std::chrono::milliseconds coarseness{50};

FlightFolder::FlightFolder(const Environment& environment, const std::string& log_folder,
                           const std::string& run_id)
    : begin_(fs::file_time_type::clock::now() - coarseness) {
  const std::string_view given = value_of(environment, variable::flight_folder);
  std::error_code ignored;
  if (!given.empty()) {
    path_ = given;
  } else if (!log_folder.empty()) {
    path_ = fs::absolute(log_folder, ignored).string();
  } else {
    path_ = (fs::temp_directory_path(ignored) / (run_id + "-flight")).string();
    temporary_ = true;
  }
}

std::string FlightFolder::records(int ranks) const {
  std::vector<std::string> fresh;
  bool older = false;
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path file = fs::path(path_) / ("flight-rank-" + std::to_string(rank) + ".json");
    std::error_code absent;
    const auto written = fs::last_write_time(file, absent);
    if (absent) continue;
    if (written < begin_) {
      older = true;
    } else {
      fresh.push_back(shell_word(file.string()));
    }
  }
  if (fresh.size() > 1 && !older)
    return shell_word((fs::path(path_) / "").string()) + "flight-rank-*.json";
  return join(fresh, " ");
}

void FlightFolder::discard(int ranks) const {
  if (!temporary_) return;
  std::error_code ignored;
  // A rank that was killed while it wrote its record has left a partial file.
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".flight-rank-") && name.ends_with(".partial"))
      fs::remove(entry.path(), ignored);
  }
  for (int rank = 0; rank < ranks; ++rank)
    fs::remove(fs::path(path_) / ("flight-rank-" + std::to_string(rank) + ".json"), ignored);
  fs::remove(path_, ignored);  // fails if the folder has other content
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t most_bytes = 1 << 20;
constexpr sys::JsonLimits limits{.depth = 8, .members = 1000, .values = 10'000};
constexpr std::size_t most_lines = 40;

// Returns an empty string if there is no such file.
std::string content_of(const std::string& file) {
  try {
    return sys::read_plain_file(file, most_bytes);
  } catch (const Error&) {
    return "";
  }
}

// Returns null if the text is not an error file.
json parsed(std::string_view text) {
  try {
    json error = sys::parse_json(text, limits);
    if (error.is_object() && error.contains("message")) return error;
  } catch (const std::exception&) {
    return nullptr;
  }
  return nullptr;
}

std::string text_at(const json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.size() > most_lines) lines.erase(lines.begin(), lines.end() - most_lines);
  return lines;
}

// Returns the exit code as Python's subprocess does: negative for a signal.
int python_code(const RankEnd& end) {
  const bool by_signal = end.exit_code > 128 && end.how.starts_with("killed");
  return by_signal ? 128 - end.exit_code : end.exit_code;
}

json own_error(const WorkerFailure& failure, std::int64_t now) {
  const RankEnd& end = failure.end;
  const std::string message = formatted("rank {} (host {}, pid {}) in round {}: {}", end.rank,
                                        failure.host, end.pid, failure.round, end.how);
  return {{"message",
           {{"message", message},
            {"extraInfo",
             {{"py_callstack", join(failure.last_lines, "\n")},
              {"timestamp", std::to_string(now)},
              {"rank", end.rank},
              {"round", failure.round},
              {"host", failure.host},
              {"pid", end.pid},
              {"exitcode", python_code(end)}}}}}};
}

// Writes in place, because the file may be mounted by itself (Kubernetes' /dev/termination-log).
std::string write(const std::string& file, const std::string& text) {
  std::error_code ignored;
  if (fs::exists(file, ignored) && !fs::is_regular_file(file, ignored))
    return formatted("cannot write the error file {}: expected a file or nothing", file);
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  return stream ? "" : formatted("cannot write the error file {}: {}", file, std::strerror(errno));
}

}  // namespace

ErrorFolder::ErrorFolder(const std::string& log_folder, const std::string& run_id)
    : temporary_(log_folder.empty()) {
  std::error_code ignored, error;
  const fs::path above =
      fs::absolute(temporary_ ? fs::temp_directory_path(ignored) : fs::path(log_folder), ignored);
  if (above.empty()) return;
  const fs::path folder = above / (temporary_ ? run_id + "-errors" : "errors");
  fs::create_directories(folder, error);
  if (temporary_ && error) return;
  if (error)
    throw SystemError("making the folder of error files " + folder.string(), error.value());
  if (temporary_) fs::permissions(folder, fs::perms::owner_all, ignored);
  path_ = folder.string();
}

ErrorFolder::~ErrorFolder() {
  std::error_code ignored;
  if (temporary_ && !path_.empty()) fs::remove_all(path_, ignored);
}

std::string ErrorFolder::file(int round, int rank) const {
  if (path_.empty()) return "";
  const fs::path file = fs::path(path_) / formatted("round-{}-rank-{}.json", round, rank);
  std::error_code ignored;
  fs::remove(file, ignored);
  return file.string();
}

std::vector<std::string> recorded_error(const std::string& file) {
  const json error = parsed(content_of(file));
  if (error.is_null()) return {};
  const json& message = error["message"];
  if (message.is_string()) return lines_of(message.get<std::string>());
  const auto extra = message.is_object() ? message.find("extraInfo") : message.end();
  std::string text = extra != message.end() ? text_at(*extra, "py_callstack") : "";
  if (text.empty()) text = text_at(message, "message");
  return lines_of(text);
}

std::string error_text(const WorkerFailure& failure, std::string_view recorded, std::int64_t now) {
  json error = parsed(recorded);
  if (error.is_null()) error = own_error(failure, now);
  json& message = error["message"];
  if (message.is_object() && failure.end.exit_code != 0)
    message["errorCode"] = python_code(failure.end);
  return error.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string write_error_files(const WorkerFailure& failure, const std::string& file, bool keep,
                              const std::string& copy) {
  const std::string text = error_text(failure, content_of(file), std::time(nullptr));
  std::string problem;
  if (keep && !file.empty()) problem = write(file, text);
  if (!copy.empty() && problem.empty()) problem = write(copy, text);
  return problem;
}

namespace {

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw SystemError("making the log folder " + folder, error.value());
}

std::string where(const RoundPlan& plan, int node) {
  if (plan.nodes.size() < 2) return {};
  const int group_rank = plan.group_rank(node);
  return formatted("node {}, host {}", group_rank,
                   group_rank < 0 ? "unknown" : plan.nodes[group_rank].host);
}

}  // namespace

void RunReport::open(const std::string& run_id) {
  if (!run_.spec.log_folder.empty()) make_folder(run_.spec.log_folder);
  errors_.emplace(run_.spec.log_folder, formatted("{}-{}", run_id, run_.node));
  Environment& environment = run_.spec.environment;
  flight_.emplace(environment, run_.spec.log_folder, run_id);
  environment[variable::flight_folder] = flight_->path();
  environment.erase(variable::names_lines);
  if (run_.spec.prefix == PrefixStyle::rank) environment[variable::names_lines] = "1";
}

const RankEnd& RunReport::cause_here() const {
  return *std::ranges::find(run_.result.ends, run_.machine.cause(), &RankEnd::rank);
}

// Returns the rank that ended first, unless it printed nothing and another rank has explained the
// failure ("lockstep train: ...").
const RankEnd& RunReport::end_to_report() const {
  const RankEnd& cause = cause_here();
  const SharedFailures& failures = relay_.failures();
  if (failures.has_complained(cause.rank)) return cause;
  const auto speaker = std::ranges::find_if(run_.result.ends, [&](const RankEnd& end) {
    return end.exit_code == cause.exit_code && failures.has_complained(end.rank);
  });
  return speaker == run_.result.ends.end() ? cause : *speaker;
}

// If the rank that ended first has not explained its exit, returns a rank that ended by itself and
// has explained it.
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
    return relay_.log_line("stopped by " + sys::signal_name(stop_signal) + "; " +
                           describe(result.ends));
  }
  RankOutput& output = worker.output();
  const RankEnd* first = &cause_here();
  std::vector<RankEnd> others(first, std::as_const(result.ends).data() + result.ends.size());
  std::erase_if(others, [&](const RankEnd& end) { return end.rank == cause->rank; });
  log_failure({.cause = *cause,
               .ranks = run_.plan.ranks(),
               .where = where(run_.plan, run_.node),
               .at = run_.failed_at,
               .last_lines = output.last_lines().lines(reported_lines),
               .shared = &relay_.failures(),
               .log_file = output.log_file(),
               .recorded = std::move(recorded),
               .error_file = errors_->is_temporary() ? std::string() : worker.error_file(),
               .witness = witness_of(*cause),
               .others = std::move(others),
               .ended_together = cause != first});
}

// Writes the rank's own error file, if it is kept, and the file that this agent's parent has named.
void RunReport::write_error_files(const RankEnd& cause) {
  Worker& worker = run_.worker(cause.rank);
  const WorkerFailure failure{.end = cause,
                              .round = run_.plan.round,
                              .host = sys::host_name(),
                              .last_lines = worker.output().last_lines().lines(reported_lines)};
  const std::string problem =
      launch::write_error_files(failure, worker.error_file(), !errors_->is_temporary(),
                                std::string(value_of(run_.spec.environment, variable::error_file)));
  if (!problem.empty()) relay_.log_line(problem);
}

bool RunReport::report_elsewhere() {
  const auto& told = run_.run_result;
  AgentResult& result = run_.result;
  if (!told || told->kind != RunResult::Kind::failed) return false;
  result.exit_code = std::max(1, told->exit_code);
  if (told->node == run_.node && run_.own_failure)
    return run_.own_failure->rank < 0;  // was printed already
  if (told->rank < 0) {
    relay_.log_line(run_.failure);
    if (!result.ends.empty()) relay_.log_line("the ranks of this node: " + describe(result.ends));
    return true;
  }
  const RankEnd cause{.rank = told->rank,
                      .pid = told->pid,
                      .exit_code = told->exit_code,
                      .how = told->how,
                      .after = told->after};
  result.cause = cause;
  log_failure({.cause = cause,
               .ranks = run_.plan.ranks(),
               .where = where(run_.plan, told->node),
               .at = told->at,
               .last_lines = told->last_lines,
               .shared = &relay_.failures(),
               .log_file = told->log_file,
               .others = result.ends});
  return true;
}

void RunReport::log_failure(const RunFailure& failure) {
  for (const std::string& line : describe(failure)) relay_.log_line(line);
}

// The records are useless if the run succeeded or was asked to stop.
void RunReport::report_records() {
  if (!flight_) return;
  const int ranks = run_.plan.ranks();
  if (run_.result.exit_code == 0 || run_.machine.stop_signal() != 0) return flight_->discard(ranks);
  const std::string files = flight_->records(ranks);
  if (files.empty()) return flight_->discard(ranks);
  relay_.log_line("to see the last calls of the ranks: lockstep report hang " + files);
}

}  // namespace lockstep::launch
