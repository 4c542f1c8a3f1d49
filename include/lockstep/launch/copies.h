// Starts copies of the calling program as the ranks of a run on this host, as train::run_program()
// does for --ranks N. In a library of its own (liblockstep_agent.so), which ranks do not need.
#pragma once

#include <lockstep/base/deadline.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::launch {

struct Copies {
  std::vector<std::string> words;  // of the command line, without the program's name
  int ranks = 1;
  Duration grace = std::chrono::seconds(30);  // from a request to stop to SIGKILL
  // How often a rank may fail before the run has; all ranks then begin another round.
  int max_restarts = 0;
  Duration hung_after = {};      // a rank that is stopped for this long has failed; 0: none has
  int explained_exit_code = -1;  // a rank that ends with this code has said why; -1: none does
  // Environment variables of the ranks beside the caller's own.
  std::vector<std::pair<std::string, std::string>> variables = {};
};

// Blocks until all copies have ended, and returns the exit code of the run. Their output is passed
// on unchanged, and signals too. Call it in a process without other threads. Throws BadInput for
// numbers that make no sense, and SystemError if copies cannot be watched.
[[nodiscard]] int start_copies(const Copies& copies);

using StartCopies = int (*)(const Copies& copies);

}  // namespace lockstep::launch

#pragma GCC visibility pop
