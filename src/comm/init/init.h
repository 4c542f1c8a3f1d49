// init() with a rank and world that the caller knows, for the rounds of an elastic run
// (src/elastic), and its checks of the process.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/store/store.h>

#include "rank_env/rank_info.h"

#include <functional>
#include <memory>
#include <string>

namespace lockstep {

// Wraps the run's store for the ranks; empty: no wrapper.
using StoreFilter = std::function<std::shared_ptr<Store>(std::shared_ptr<Store>)>;

// Collective over the ranks with the same `info.attempt`. Behaves as init(), which calls it with
// the values of the environment.
[[nodiscard]] Group init_at(const rank_env::RankInfo& info, const InitOptions& options,
                            const StoreFilter& filter = {});

// Lockstep has state that must be unique per process: the arenas of its ranks, LibTorch's CPU
// allocator, a dispatch key. Throws Error if another copy of Lockstep in this process has called
// this function: liblockstep.so beside the static libraries, or two libraries that each contain the
// static ones. Thread-safe.
void check_only_copy();

// Returns a warning of OpenMP threads that occupy the cores of a busy host while they wait. Empty
// if idle threads sleep soon, if there is one thread, or if the host has cores to spare. `load` is
// its load average.
[[nodiscard]] std::string problem_of_waiting_threads(int threads, int cores, double load);

}  // namespace lockstep
