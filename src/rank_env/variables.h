// The environment that `lockstep run` gives a rank: the names, and what their values mean. init()
// reads them; so can any program, in any language.
//
// The first group of names is torchrun's, with torchrun's meaning, so a program written for
// torchrun runs unchanged. TORCHELASTIC_USE_AGENT_STORE is never set: the program's own rank 0
// binds MASTER_PORT (what PyTorch's env:// does), and the agent's store is the one in
// LOCKSTEP_STORE. Numbers are decimal.
#pragma once

#include <cstddef>

namespace lockstep::rank_env {

namespace variable {

inline constexpr const char* rank = "RANK";                          // 0 .. WORLD_SIZE-1
inline constexpr const char* world_size = "WORLD_SIZE";              // ranks of the whole run
inline constexpr const char* local_rank = "LOCAL_RANK";              // number on this machine
inline constexpr const char* local_world_size = "LOCAL_WORLD_SIZE";  // ranks on this machine
inline constexpr const char* group_rank = "GROUP_RANK";  // number of this machine's agent
inline constexpr const char* group_world_size = "GROUP_WORLD_SIZE";  // agents of the run
inline constexpr const char* role_rank =
    "ROLE_RANK";  // rank among those of the same role: RANK here
inline constexpr const char* role_world_size = "ROLE_WORLD_SIZE";  // WORLD_SIZE here
inline constexpr const char* role_name = "ROLE_NAME";              // "default"
inline constexpr const char* master_address = "MASTER_ADDR";       // where rank 0 may listen
inline constexpr const char* master_port =
    "MASTER_PORT";  // free a moment ago; another one each attempt
inline constexpr const char* run_id =
    "TORCHELASTIC_RUN_ID";  // the same text on all ranks, another each run
// How many restarts failures have taken so far, and how many they may take. Nodes that come or go
// lead to another round and take none.
inline constexpr const char* restart_count = "TORCHELASTIC_RESTART_COUNT";
inline constexpr const char* max_restarts = "TORCHELASTIC_MAX_RESTARTS";
// A file that is not there yet: where a Python program below @record writes its exception, as JSON
// {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": SECONDS}}}.
inline constexpr const char* error_file = "TORCHELASTIC_ERROR_FILE";

// The agent's own store, or over several nodes that of node 0's agent: "tcp://HOST:PORT". Keys that
// begin with "lockstep/" are the library's, those with "lockstep-run/" the agents'.
inline constexpr const char* store = "LOCKSTEP_STORE";
// The number of an open descriptor, this rank's own, that holds the store's secret: secret_bytes
// raw bytes in a sealed memory file. Read it with pread() from offset 0, as often as needed; its
// read position belongs to nobody. init() makes it close on exec, as it does with the next one.
inline constexpr const char* secret_descriptor = "LOCKSTEP_SECRET_FD";
// The number of an open descriptor that becomes readable when the agent's process ends (a pidfd).
// init() watches it; so can any program.
inline constexpr const char* agent_descriptor = "LOCKSTEP_AGENT_FD";

// In a run with rounds (--max-restarts, --nnodes MIN:MAX): the round for which this process was
// started, from 0 on, and its name, "NODE.NUMBER", which no other process of the run has.
inline constexpr const char* round = "LOCKSTEP_ROUND";
inline constexpr const char* worker = "LOCKSTEP_WORKER";
// The number of the agent that has started this process, which lasts as long as the agent.
inline constexpr const char* agent = "LOCKSTEP_AGENT";

// Of a process in reserve: the number of an open descriptor, a socket through which its agent gives
// it the place of a rank that was lost. Until then it has no RANK (reserve.h).
inline constexpr const char* reserve_descriptor = "LOCKSTEP_RESERVE_FD";

// The folder for what ranks write when they fail, such as flight-rank-3.json. Set where the user
// has not: to the folder of the logs, else to a name in the folder for temporary files.
inline constexpr const char* flight_folder = "LOCKSTEP_FLIGHT";

// "1": each line that a rank prints gets its rank in front, so that the rank's own log need not
// name it.
inline constexpr const char* names_lines = "LOCKSTEP_NAMES_LINES";

// Given only where the user has not set them.
inline constexpr const char* omp_threads = "OMP_NUM_THREADS";  // max(1, usable cores / ranks here)
// How idle threads of OpenMP wait, where the user has set none of these: "passive" and "0" when
// ranks are more than cores; else GOMP_SPINCOUNT alone, brief_spin.
inline constexpr const char* omp_wait_policy = "OMP_WAIT_POLICY";
inline constexpr const char* gomp_spin_count = "GOMP_SPINCOUNT";
inline constexpr const char* kmp_blocktime = "KMP_BLOCKTIME";
inline constexpr const char* python_unbuffered =
    "PYTHONUNBUFFERED";  // "1": lines of Python ranks appear when printed

}  // namespace variable

inline constexpr std::size_t secret_bytes = 32;

// How often an idle thread looks for work before it sleeps. libgomp's default, 300,000 looks, takes
// the cores from other programs, and from the thread that it waits for.
inline constexpr const char* brief_spin = "1000";

// How a rank says on standard error why its group died, once, before its program learns of it:
// "... error: the group failed: SENTENCE; flight record: PATH". The sentence is the same on all
// ranks, so `lockstep run` shows it once.
inline constexpr const char* failure_mark = "the group failed: ";
inline constexpr const char* flight_record_mark = "; flight record: ";

}  // namespace lockstep::rank_env
