// One rank, as the agent sees it: its process and its output.
#pragma once

#include "launch/agent.h"
#include "launch/rank_output.h"
#include "sys/file_descriptor.h"
#include "sys/process.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launch {

class Worker {
 public:
  // What it does at the end of a round.
  enum class Standing {
    plain,    // it is ended, and another process is started for the next one
    keeps,    // it leaves the round by itself
    waiting,  // it has left, and waits for the next one
  };

  // `log` as RankOutput.
  Worker(int rank, std::string name, Printer& output, Printer& error, SharedFailures& failures,
         const LogFile& log)
      : rank_(rank), name_(std::move(name)), output_(rank, output, error, failures, log) {}

  // Executes `file` with the arguments and surroundings of `spec`. Without a rank (-1) it is in
  // reserve: the program waits for its place in launch::wait_for_place(). SystemError when that
  // fails.
  void start(const std::string& file, const WorkerSpec& spec, const RankSpec& place,
             rlimit open_files);

  [[nodiscard]] bool is_in_reserve() const { return static_cast<bool>(reserve_); }
  // Whether it waits there.
  [[nodiscard]] bool is_ready();
  // Of one that is ready: it becomes that worker, and goes on with give_place().
  void take_over(int rank, std::string name, const LogFile& log);
  void give_place(const RankSpec& place);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // In the next round.
  void set_rank(int rank) {
    rank_ = rank;
    output_.set_rank(rank);
  }
  [[nodiscard]] Standing standing() const { return standing_; }
  void set_standing(Standing standing) { standing_ = standing; }
  // Kills it. `why` is how its end reads: "killed by the agent: ...".
  void kill(const std::string& why);
  [[nodiscard]] const std::string& error_file() const { return error_file_; }
  [[nodiscard]] RankOutput& output() { return output_; }
  // The process while it has not been collected, else nothing.
  [[nodiscard]] sys::Process* process() { return running_ ? &*process_ : nullptr; }
  // Of the process that was started last.
  [[nodiscard]] int pid() const { return process_ ? process_->pid() : 0; }
  // How it ended, once, when it has.
  [[nodiscard]] std::optional<sys::ExitStatus> take_end();
  // The same again; nothing while it runs.
  [[nodiscard]] const std::optional<sys::ExitStatus>& end() const { return end_; }
  [[nodiscard]] RankEnd describe_end(sys::ExitStatus status, Clock::time_point now) const;

 private:
  int rank_;
  std::string name_;
  Standing standing_ = Standing::plain;
  std::string killed_why_;
  std::string error_file_;
  RankOutput output_;
  std::optional<sys::Process> process_;
  sys::FileDescriptor reserve_;     // to it, while it has no place
  sys::FileDescriptor in_reserve_;  // its own, while it is started
  bool is_ready_ = false;
  bool running_ = false;
  std::optional<sys::ExitStatus> end_;
  Clock::time_point started_;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

}  // namespace lockstep::launch
