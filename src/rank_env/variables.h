// The environment variables that `lockstep run` sets for a rank, and the meaning of their values.
// init() reads them; so can any program, in any language.
//
// The first group has torchrun's names and meanings, so a program written for torchrun runs
// unchanged. TORCHELASTIC_USE_AGENT_STORE is never set: the program's own rank 0 binds MASTER_PORT
// (as PyTorch's env:// does), and the agent's store is the one in LOCKSTEP_STORE. Numbers are
// decimal.
#pragma once

#include <cstddef>

namespace lockstep::rank_env {

namespace variable {

inline constexpr const char* rank = "RANK";                          // 0 .. WORLD_SIZE-1
inline constexpr const char* world_size = "WORLD_SIZE";              // total number of ranks
inline constexpr const char* local_rank = "LOCAL_RANK";              // rank on this node
inline constexpr const char* local_world_size = "LOCAL_WORLD_SIZE";  // ranks on this node
inline constexpr const char* group_rank = "GROUP_RANK";              // number of this node's agent
inline constexpr const char* group_world_size = "GROUP_WORLD_SIZE";  // number of agents
inline constexpr const char* role_rank = "ROLE_RANK";  // rank within its role, always RANK
inline constexpr const char* role_world_size = "ROLE_WORLD_SIZE";  // always WORLD_SIZE
inline constexpr const char* role_name = "ROLE_NAME";              // always "default"
// an address at which rank 0 may listen
inline constexpr const char* master_address = "MASTER_ADDR";
inline constexpr const char* master_port =
    "MASTER_PORT";  // was free recently; differs between attempts
inline constexpr const char* run_id =
    "TORCHELASTIC_RUN_ID";  // the same on all ranks, different for each run
// The number of restarts after failures so far, and its limit. A node that joins or leaves starts a
// new round, but does not count as a restart.
inline constexpr const char* restart_count = "TORCHELASTIC_RESTART_COUNT";
inline constexpr const char* max_restarts = "TORCHELASTIC_MAX_RESTARTS";
// A file that does not exist yet. A Python program under @record writes its exception there as
// JSON: {"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT, "timestamp": SECONDS}}}.
inline constexpr const char* error_file = "TORCHELASTIC_ERROR_FILE";

// The address of the agent's own store, or with several nodes of the store of node 0's agent:
// "tcp://HOST:PORT". Keys that begin with "lockstep/" belong to the library, those with
// "lockstep-run/" to the agents.
inline constexpr const char* store = "LOCKSTEP_STORE";
// An open descriptor of this rank that holds the store's secret: secret_bytes raw bytes in a sealed
// memory file. Read it with pread() from offset 0, as often as needed; its read position is
// unspecified. init() sets close-on-exec on this descriptor and on LOCKSTEP_AGENT_FD.
inline constexpr const char* secret_descriptor = "LOCKSTEP_SECRET_FD";
// An open descriptor that becomes readable when the agent's process ends (a pidfd). init() watches
// it; so can any program.
inline constexpr const char* agent_descriptor = "LOCKSTEP_AGENT_FD";

// In a run with rounds (--max-restarts, --nnodes MIN:MAX): the round for which this process was
// started, counted from 0, and the name of the process, "NODE.NUMBER", which is unique in the run.
inline constexpr const char* round = "LOCKSTEP_ROUND";
inline constexpr const char* worker = "LOCKSTEP_WORKER";
// The number of the agent that started this process. An agent never changes its number.
inline constexpr const char* agent = "LOCKSTEP_AGENT";

// Only in a hot spare: an open descriptor of a socket through which its agent sends it the
// place of a lost rank. Until then the process has no RANK (rank_info.h).
inline constexpr const char* hot_spare_descriptor = "LOCKSTEP_HOT_SPARE_FD";

// The folder into which ranks write when they fail, for example flight-rank-3.json. Unless the user
// has set it, it is the folder of the logs or, without one, a name in the folder for temporary
// files.
inline constexpr const char* flight_folder = "LOCKSTEP_FLIGHT";

// Set by the user, for init(): the device of a rank ("cpu", "cuda", "cuda:1"); unset: init()
// chooses.
inline constexpr const char* device = "LOCKSTEP_DEVICE";
// "1", by --share-gpus or by the user: ranks of one host may share a GPU.
inline constexpr const char* share_gpus = "LOCKSTEP_SHARE_GPUS";
// With --gpus-per-rank: the GPUs of a rank, a part of the agent's list or of all GPUs.
inline constexpr const char* visible_gpus = "CUDA_VISIBLE_DEVICES";

// "1": each line that a rank prints is prefixed with its rank, so that the rank's own log need not
// contain it.
inline constexpr const char* names_lines = "LOCKSTEP_NAMES_LINES";

// The variables below are set only if the user has not set them.
inline constexpr const char* omp_threads = "OMP_NUM_THREADS";  // max(1, usable cores / local ranks)
// Controls how idle OpenMP threads wait. Set only if the user has set none of these variables: to
// "passive" and "0" if there are more ranks than cores; otherwise only GOMP_SPINCOUNT is set, to
// brief_spin.
inline constexpr const char* omp_wait_policy = "OMP_WAIT_POLICY";
inline constexpr const char* gomp_spin_count = "GOMP_SPINCOUNT";
inline constexpr const char* kmp_blocktime = "KMP_BLOCKTIME";
inline constexpr const char* python_unbuffered =
    "PYTHONUNBUFFERED";  // "1": output of Python ranks is unbuffered

}  // namespace variable

inline constexpr std::size_t secret_bytes = 32;

// How many times an idle OpenMP thread spins before it sleeps. libgomp's default of 300,000 takes
// CPU time from other programs, and from the thread that it waits for.
inline constexpr const char* brief_spin = "1000";

// The line that a rank prints once to standard error if its group fails, before the error reaches
// its program: "... error: the group failed: SENTENCE; flight record: PATH". The sentence is the
// same on all ranks, so `lockstep run` prints it once.
inline constexpr const char* failure_mark = "the group failed: ";
inline constexpr const char* flight_record_mark = "; flight record: ";

}  // namespace lockstep::rank_env
