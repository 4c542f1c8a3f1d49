// One rank, as the agent sees it: its process and its output.
#pragma once

#include "launch/agent.h"
#include "launch/rank_output.h"
#include "sys/process.h"

#include <optional>
#include <string>

namespace lockstep::launch {

class Worker {
 public:
  Worker(int rank, Printer& output, Printer& error, SharedFailures& failures,
         const std::string& log_file)
      : rank_(rank), output_(rank, output, error, failures, log_file) {}

  // Executes `file` with the arguments and surroundings of `spec`. SystemError when that fails.
  void start(const std::string& file, const WorkerSpec& spec, const RankSpec& place,
             rlimit open_files);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] RankOutput& output() { return output_; }
  // The process while it has not been collected, else nothing.
  [[nodiscard]] sys::Process* process() { return running_ ? &*process_ : nullptr; }
  // How it ended, once, when it has.
  [[nodiscard]] std::optional<sys::ExitStatus> take_end();
  [[nodiscard]] RankEnd describe_end(sys::ExitStatus status, Clock::time_point now) const;

 private:
  int rank_;
  RankOutput output_;
  std::optional<sys::Process> process_;
  bool running_ = false;
  Clock::time_point started_;
};

}  // namespace lockstep::launch
