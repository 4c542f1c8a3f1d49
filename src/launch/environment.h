// The environment of a rank, as its agent makes it.
#pragma once

#include "rank_env/variables.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launch {

namespace variable = rank_env::variable;

// The description of one rank when the agent starts it.
struct RankSpec {
  int rank = 0;
  int ranks = 1;  // of all nodes
  int local_rank = 0;
  int local_ranks = 1;
  int node = 0;
  int nodes = 1;
  int agent = 0;
  int restart = 0;
  int max_restarts = 0;
  int round = -1;          // -1: the run has no rounds
  std::string worker;      // its name, where there are rounds
  std::string error_file;  // empty: none
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::string run_id;
  std::string store;  // empty: no store, LOCKSTEP_STORE is not set
  int secret_descriptor = -1;
  int agent_descriptor = -1;
  int cores = 1;     // that this process may use
  std::string gpus;  // of this rank, for CUDA_VISIBLE_DEVICES; empty: as `base` says
  bool shares_gpus = false;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// Empty where it is not set.
[[nodiscard]] std::string_view value_of(const Environment& environment, std::string_view name);

// The variables of the calling process, in the order of environ.
[[nodiscard]] Environment current_environment();

// Gives the calling process, which has no other threads, GOMP_SPINCOUNT for a program that it will
// execute, unless the user has said how threads wait.
void spin_briefly();

// `base` with the variables of `place` added. The names of the first two groups replace what `base`
// says about them (and TORCHELASTIC_USE_AGENT_STORE is dropped); the last group only fills gaps.
[[nodiscard]] Environment rank_environment(Environment base, const RankSpec& place);

// Returns the initial environment of a process in reserve: rank_environment() without the variables
// that give the rank and the round, and with the number of its socket.
[[nodiscard]] Environment reserve_environment(Environment base, const RankSpec& place,
                                              int descriptor);
// And those variables, which it gets with its place.
[[nodiscard]] Environment place_environment(const RankSpec& place);

}  // namespace lockstep::launch
