// Makes the environment of a rank.
#pragma once

#include "rank_env/variables.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>

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
  std::string worker;      // its name, if the run has rounds
  std::string error_file;  // empty: none
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::string run_id;
  std::string store;  // empty: no store, LOCKSTEP_STORE is not set
  int secret_descriptor = -1;
  int agent_descriptor = -1;
  int cores = 1;     // that this process may use
  std::string gpus;  // of this rank, for CUDA_VISIBLE_DEVICES; empty: as in `base`
  bool shares_gpus = false;
};

using Environment = std::map<std::string, std::string, std::less<>>;  // value by name

// Returns the value of the variable; empty if it is not set.
[[nodiscard]] std::string_view value_of(const Environment& environment, std::string_view name);

// Returns the variables of the calling process.
[[nodiscard]] Environment current_environment();

// Sets GOMP_SPINCOUNT in this process for a program that it will execute, unless the user has set
// how threads wait. The process must have no other threads.
void spin_briefly();

// Returns `base` with the variables of `place`. Variables of the first two groups of variables.h
// replace those of `base` (and TORCHELASTIC_USE_AGENT_STORE is removed); the last group is only
// added where missing.
[[nodiscard]] Environment rank_environment(Environment base, const RankSpec& place);

// Returns the initial environment of a hot spare: rank_environment() without the variables for rank
// and round, but with the descriptor of its socket.
[[nodiscard]] Environment hot_spare_environment(Environment base, const RankSpec& place,
                                                int descriptor);
// Returns the remaining variables, which a hot spare gets together with its rank.
[[nodiscard]] Environment place_environment(const RankSpec& place);

}  // namespace lockstep::launch
