// Programs whose processes are ranks. One that a launcher started is a rank; one that nobody
// launched is one rank too, or with --ranks N becomes the launcher of N copies of itself.
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
  std::string command;                               // for what is said: "lockstep train"
  launch::StartCopies start = launch::start_copies;  // for --ranks N
  std::vector<std::string> words;                    // of the command line, for the copies
  std::int64_t ranks = 0;          // --ranks; 0: as the launcher says, else usual_ranks
  std::int64_t usual_ranks = 1;    // where neither --ranks nor a launcher says how many
  std::string flight_folder = {};  // for flight records where the user names none; may be empty
  Duration grace = std::chrono::seconds(30);  // of the copies: launch::Copies::grace
  // Throws BadInput for options that so many ranks cannot have.
  std::function<void(int ranks)> check = [](int) {};
  // The same for files, once: in the process that starts the copies, or on rank 0.
  std::function<void()> check_files = [] {};
  std::function<int(Group world)> body;  // what a rank does, and its exit code
  // In place of `body`, for ranks that may be lost: makes its groups itself, and tells of each.
  std::function<int(const std::function<void(const Group&)>& begins)> elastic_body = {};
};

// The exit code: 1 after a line on standard error for what went wrong, 2 because of the options.
// What all ranks found wrong together (CommonFailure) is said by rank 0 alone. Throws
// UsageError where check() fails before anything is started.
[[nodiscard]] int run_ranks(const RankProgram& program);

// run_program() (lockstep/train/program.h) for a program of several tasks. `name` is what is said
// before complaints and help: "lockstep train"; `shell_name` is how a shell finds the program, for
// the command that resumes a run.
[[nodiscard]] int run_program(const std::string& name, const std::string& shell_name,
                              const std::vector<Task*>& tasks,
                              const std::vector<std::string>& words,
                              launch::StartCopies start = launch::start_copies);

}  // namespace lockstep::train
