// What an agent says at the end of a round or of the run, and the files that stay of a failure.
#pragma once

#include "launch/agent.h"
#include "launch/environment.h"
#include "launch/output_relay.h"
#include "launch/rank_processes.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

// A rank that ended by itself, and what it said before that.
struct Witness {
  RankEnd end;
  std::vector<std::string> last_lines;
};

inline constexpr std::size_t reported_lines = 20;

struct FailureReport {
  RankEnd cause;
  int ranks = 1;
  std::string where;  // "node 1, host b"; empty: there is one node
  std::string at;     // time of day
  std::vector<std::string> last_lines;
  const SharedFailures* shared = nullptr;  // what was shown already; null: nothing
  std::string log_file;                    // empty: none
  std::vector<std::string> recorded = {};  // what it has written into its error file
  std::string error_file = {};             // that stays; empty: none
  std::optional<Witness> witness = {};     // where the cause has said nothing
  std::vector<RankEnd> others;             // ranks of this node that ended after it
  bool ended_together = false;             // or a moment before it
};

// Lines without their ends: the cause, its last lines but for those that repeat a shared failure,
// where its log is, who ended of such a failure, and one line for all the others.
[[nodiscard]] std::vector<std::string> describe(const FailureReport& report);

// "rank 0: exit code 1; ranks 2-3: killed by signal 15 (SIGTERM)".
[[nodiscard]] std::string describe(const std::vector<RankEnd>& ends);

// Where the ranks of a run put their flight records, and what they have put there.
class FlightFolder {
 public:
  // What the environment says, else the log folder, else a fresh name in the folder for temporary
  // files. Nothing is made: the first rank that writes makes it.
  FlightFolder(const Environment& environment, const std::string& log_folder,
               const std::string& run_id);

  [[nodiscard]] const std::string& path() const { return path_; }
  // How a shell names the records of this run, for `lockstep report hang`; empty when there is
  // none.
  [[nodiscard]] std::string records(int ranks) const;
  // Removes the records, where nobody has named a folder for them.
  void discard(int ranks) const;

 private:
  std::string path_;
  bool temporary_ = false;
  std::filesystem::file_time_type begin_;
};

// Error files in torchrun's format: where a rank says why it has failed, and what the agent makes
// of it. See torch.distributed.elastic.multiprocessing.errors.
//
//   {"message": {"message": "ValueError: ...",
//                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1760000000"}}}

// A folder with a file for each worker of a run. Only this agent's workers write there.
class ErrorFolder {
 public:
  // Makes it: below the log folder where there is one, where it stays, or SystemError; else below
  // the folder for temporary files, and where that takes nothing ranks have no error files.
  ErrorFolder(const std::string& log_folder, const std::string& run_id);
  // Removes it where it is temporary.
  ~ErrorFolder();
  ErrorFolder(const ErrorFolder&) = delete;
  ErrorFolder& operator=(const ErrorFolder&) = delete;

  // Of a worker that is about to be started; what an older run has left there is removed. Empty:
  // none.
  [[nodiscard]] std::string file(int round, int rank) const;
  [[nodiscard]] const std::string& path() const { return path_; }  // empty: there is none
  [[nodiscard]] bool is_temporary() const { return temporary_; }

 private:
  std::string path_;
  bool temporary_ = false;
};

// What a rank has written, for a report: the lines of its call stack, else of its message. Empty
// when there is no such file, or it is no error file of at most 1 MiB.
[[nodiscard]] std::vector<std::string> recorded_error(const std::string& file);

struct WorkerFailure {
  RankEnd end;
  int round = 0;
  std::string host;
  std::vector<std::string> last_lines;
};

// The text of an error file about a rank that has failed. What the rank has written (`recorded`,
// the content of its own file) is kept, and is given the exit code as torchrun does it
// ("errorCode", negative for a signal); where that is empty or no error file the agent says what it
// knows: message, and in extraInfo py_callstack (the last lines), timestamp, rank, round, host,
// pid, exitcode.
[[nodiscard]] std::string error_text(const WorkerFailure& failure, std::string_view recorded,
                                     std::int64_t now);

// Writes error_text() into `file`, the worker's own, where it was to be kept, and into `copy`,
// which is the agent's own TORCHELASTIC_ERROR_FILE: its parent's way to learn. Empty: not. Gives
// what went wrong, else "".
[[nodiscard]] std::string write_error_files(const WorkerFailure& failure, const std::string& file,
                                            bool keep, const std::string& copy);

class RunReport {
 public:
  // All of which outlives this.
  RunReport(RunState& run, OutputRelay& relay) : run_(run), relay_(relay) {}

  // Makes the folders of the run, and tells the ranks where they put their flight records. Before
  // they are started. SystemError as Agent::run().
  void open(const std::string& run_id);
  [[nodiscard]] const ErrorFolder& errors() const { return *errors_; }
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
  std::optional<ErrorFolder> errors_;
  std::optional<FlightFolder> flight_;
};

}  // namespace lockstep::launch
