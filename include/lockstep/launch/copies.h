// Starts copies of the calling program as the ranks of a run on this host, as train::run_program()
// does for --ranks N. Lies in a separate library (liblockstep_agent.so), which ranks do not need.
#pragma once

#include <lockstep/base/deadline.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::launch {

struct Copies {
  std::vector<std::string> words;  // the command line without the program's name
  int ranks = 1;
  Duration grace = std::chrono::seconds(30);  // from a request to stop to SIGKILL
  // The number of rank failures after which the run still continues; after each, all ranks begin
  // another round.
  int max_restarts = 0;
  Duration hung_after = {};      // a rank that is stopped for this long has failed; 0: never
  int explained_exit_code = -1;  // a rank with this exit code has printed why; -1: none
  // Environment variables of the ranks, in addition to the caller's.
  std::vector<std::pair<std::string, std::string>> variables = {};
};

// Blocks until all copies have ended, and returns the exit code of the run. Passes on their output
// unchanged, and forwards signals to them. Call it in a process without other threads. Throws
// BadInput for invalid numbers, and SystemError if copies cannot be watched.
[[nodiscard]] int start_copies(const Copies& copies);

using StartCopies = int (*)(const Copies& copies);

}  // namespace lockstep::launch

#pragma GCC visibility pop
