// The agent's report at the end of a round or of the run, and the files that a failure leaves.
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

// A rank that ended by itself, and its last output.
struct Witness {
  RankEnd end;
  std::vector<std::string> last_lines;
};

inline constexpr std::size_t reported_lines = 20;

struct RunFailure {
  RankEnd cause;
  int ranks = 1;
  std::string where;  // "node 1, host b"; empty: there is only one node
  std::string at;     // time of day
  std::vector<std::string> last_lines;
  const SharedFailures* shared = nullptr;  // failures that were shown already; null: none
  std::string log_file;                    // empty: none
  std::vector<std::string> recorded = {};  // the content of its error file
  std::string error_file = {};             // the error file, if it is kept; empty: none
  std::optional<Witness> witness = {};     // if the cause has not explained its exit
  std::vector<RankEnd> others;             // ranks of this node that ended after it
  bool ended_together = false;             // or briefly before it
};

// Returns lines without their ends: the cause, its last lines (except lines that repeat a shared
// failure), the path of its log, the ranks that ended because of such a failure, and one line for
// all other ranks.
[[nodiscard]] std::vector<std::string> describe(const RunFailure& report);

// "rank 0: exit code 1; ranks 2-3: killed by signal 15 (SIGTERM)".
[[nodiscard]] std::string describe(const std::vector<RankEnd>& ends);

// The folder of the ranks' flight records, and access to the records in it.
class FlightFolder {
 public:
  // Takes the folder from the environment, else the log folder, else a new name in the temporary
  // folder. Creates nothing: the first rank that writes creates the folder.
  FlightFolder(const Environment& environment, const std::string& log_folder,
               const std::string& run_id);

  [[nodiscard]] const std::string& path() const { return path_; }
  // Returns a shell pattern for the records of this run, for `lockstep report hang`; empty if there
  // are no records.
  [[nodiscard]] std::string records(int ranks) const;
  // Removes the records if the user has not named a folder for them.
  void discard(int ranks) const;

 private:
  std::string path_;
  bool temporary_ = false;
  std::filesystem::file_time_type begin_;
};

// Error files in torchrun's format: a rank writes why it failed, and the agent completes the file.
// See torch.distributed.elastic.multiprocessing.errors.
//
//   {"message": {"message": "ValueError: ...",
//                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1760000000"}}}

// A folder with one file per worker of a run. Only this agent's workers write there.
class ErrorFolder {
 public:
  // Creates the folder. If there is a log folder, creates it there and keeps it; throws SystemError
  // if that fails. Otherwise creates it in the temporary folder; if that fails, ranks have no error
  // files.
  ErrorFolder(const std::string& log_folder, const std::string& run_id);
  // Removes the folder if it is temporary.
  ~ErrorFolder();
  ErrorFolder(const ErrorFolder&) = delete;
  ErrorFolder& operator=(const ErrorFolder&) = delete;

  // Returns the path for a worker that is about to be started and removes a file that an older run
  // has left there. Returns an empty string if there is no folder.
  [[nodiscard]] std::string file(int round, int rank) const;
  [[nodiscard]] const std::string& path() const { return path_; }  // empty: there is none
  [[nodiscard]] bool is_temporary() const { return temporary_; }

 private:
  std::string path_;
  bool temporary_ = false;
};

// Returns the lines of the rank's error file for a report: its call stack, else its message.
// Returns no lines if the file does not exist or is not an error file of at most 1 MiB.
[[nodiscard]] std::vector<std::string> recorded_error(const std::string& file);

struct WorkerFailure {
  RankEnd end;
  int round = 0;
  std::string host;
  std::vector<std::string> last_lines;
};

// Returns the text of an error file for a rank that has failed. Keeps `recorded`, the content of
// the rank's own file, and adds the exit code as torchrun does ("errorCode", negative for a
// signal). If `recorded` is empty or not an error file, makes a new one: message, and in extraInfo
// py_callstack (the last lines), timestamp, rank, round, host, pid, exitcode.
[[nodiscard]] std::string error_text(const WorkerFailure& failure, std::string_view recorded,
                                     std::int64_t now);

// Writes error_text() to `file`, the worker's own, if `keep` is set, and to `copy`, the agent's own
// TORCHELASTIC_ERROR_FILE, from which its parent learns of the failure. Skips an empty path.
// Returns an error message, or "" on success.
[[nodiscard]] std::string write_error_files(const WorkerFailure& failure, const std::string& file,
                                            bool keep, const std::string& copy);

class RunReport {
 public:
  // Both arguments must outlive this object.
  RunReport(RunState& run, OutputRelay& relay) : run_(run), relay_(relay) {}

  // Creates the folders of the run and sets where the ranks write their flight records. Call before
  // the ranks are started. Throws SystemError as Agent::run() does.
  void open(const std::string& run_id);
  [[nodiscard]] const ErrorFolder& errors() const { return *errors_; }
  // Reports the first rank of this node that has failed, or that the ranks were stopped.
  void report();
  // Reports a failure on another node. Returns false if there is no failure, or its cause is on
  // this node.
  [[nodiscard]] bool report_elsewhere();
  // Prints the names of the flight records, or removes them if they are useless.
  void report_records();

 private:
  [[nodiscard]] const RankEnd& cause_here() const;
  [[nodiscard]] const RankEnd& end_to_report() const;
  [[nodiscard]] std::optional<Witness> witness_of(const RankEnd& cause) const;
  void write_error_files(const RankEnd& cause);
  void log_failure(const RunFailure& failure);

  RunState& run_;
  OutputRelay& relay_;
  std::optional<ErrorFolder> errors_;
  std::optional<FlightFolder> flight_;
};

}  // namespace lockstep::launch
