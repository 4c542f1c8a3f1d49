// Error files in torchrun's format: where a rank says why it has failed, and what the agent makes
// of it. See torch.distributed.elastic.multiprocessing.errors.
//
//   {"message": {"message": "ValueError: ...",
//                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1760000000"}}}
#pragma once

#include "launch/agent.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

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

}  // namespace lockstep::launch
