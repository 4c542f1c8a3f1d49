// Where the ranks' output goes, and the agent's own lines.
#pragma once

#include "launch/agent.h"
#include "launch/poller.h"
#include "launch/printer.h"
#include "launch/shared_failures.h"
#include "launch/sink.h"
#include "launch/worker.h"

#include <lockstep/base/deadline.h>

#include <functional>
#include <string>

namespace lockstep::launch {

class OutputRelay {
 public:
  // Of the run of `spec`, which outlives this.
  explicit OutputRelay(const WorkerSpec& spec);

  // For RankOutput.
  [[nodiscard]] Printer& output() { return output_printer_; }
  [[nodiscard]] Printer& error() { return error_printer_; }
  [[nodiscard]] SharedFailures& failures() { return failures_; }

  // Prints a line of the agent's own. Much of it may have come from ranks and other nodes.
  void say(const std::string& line);
  // Writes what is left as soon as the readers take it.
  void watch(Poller& poller);
  // Reads what a rank prints, unless that must wait for a reader.
  void watch(Poller& poller, Worker& worker);
  // Shows lines of the ranks that are not finished; when to call again.
  [[nodiscard]] static Deadline show_unfinished(const Workers& workers, Clock::time_point now);
  // Says once what is lost because it cannot be written. Returns true, once, if the reader of
  // standard output has gone and the run is to stop with it.
  [[nodiscard]] bool say_losses(const Workers& workers);
  // Writes what is left, as slowly as the reader takes it, until `interrupted` or until the reader
  // takes nothing at all for a while.
  void drain(const std::function<void(Poller&)>& watch_signals, const bool& interrupted);

 private:
  const WorkerSpec& spec_;
  Sink output_, error_;
  OpenLine output_line_, error_line_;
  Printer output_printer_, error_printer_;
  SharedFailures failures_;
  bool loss_said_ = false;
};

}  // namespace lockstep::launch
