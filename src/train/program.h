// Programs whose processes are ranks. A process that a launcher started is a rank. Without a
// launcher, the process is the only rank, or with --ranks N, it launches N copies of itself.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>
#include <lockstep/launch/copies.h>
#include <lockstep/train/task.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::train {

struct RankProgram {
  std::string command;                               // name in messages: "lockstep train"
  launch::StartCopies start = launch::start_copies;  // for --ranks N
  std::vector<std::string> words;                    // command line for the copies
  std::int64_t ranks = 0;          // --ranks; 0: as the launcher says, otherwise usual_ranks
  std::int64_t usual_ranks = 1;    // used if neither --ranks nor a launcher gives a number
  std::string device = {};         // --device, for InitOptions::device
  std::string flight_folder = {};  // default folder for flight records; may be empty
  Duration grace = std::chrono::seconds(30);  // for the copies: launch::Copies::grace
  // Throws BadInput for options that do not fit this number of ranks.
  std::function<void(int ranks)> check = [](int) {};
  // Checks files once: in the process that starts the copies, or on rank 0.
  std::function<void()> check_files = [] {};
  std::function<int(Group world)> body;  // runs on each rank; returns the exit code
  // Used instead of `body` for elastic runs: makes its groups itself, and calls `begins` with each.
  std::function<int(const std::function<void(const Group&)>& begins)> elastic_body = {};
};

// Runs the program. Returns the exit code: 1 after an error, with a line on standard error, or 2 if
// the options are invalid. If all ranks throw CollectiveFailure, only rank 0 prints it. Throws
// UsageError if the device is not there, or if check() fails before any process starts.
[[nodiscard]] int run_ranks(const RankProgram& program);

// Implements run_program() (lockstep/train/program.h) for a program with several tasks. `name` is
// printed before error messages and help: "lockstep train". `shell_name` is the program's name in
// the command that resumes a run.
[[nodiscard]] int run_program(const std::string& name, const std::string& shell_name,
                              const std::vector<Task*>& tasks,
                              const std::vector<std::string>& words,
                              launch::StartCopies start = launch::start_copies);

}  // namespace lockstep::train
