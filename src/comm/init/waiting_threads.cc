#include "comm/init/waiting_threads.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/log.h"
#include "rank_env/variables.h"
#include "sys/topology.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdlib>

namespace lockstep {

namespace variable = rank_env::variable;

std::string problem_of_waiting_threads(int threads, int cores, double load) {
  constexpr double busy = 1.5;  // runnable processes per core
  if (threads < 2 || load < busy * cores) return {};
  for (const char* name :
       {variable::omp_wait_policy, variable::gomp_spin_count, variable::kmp_blocktime})
    if (environment::text(name)) return {};
  return formatted(
      "init: idle threads of OpenMP spin, and this host is busy (load {:.1f}, cores: {}): set "
      "{}={} before the program starts, as `lockstep run` does",
      load, cores, variable::gomp_spin_count, rank_env::brief_spin);
}

void warn_of_waiting_threads() {
  static std::atomic<bool> was_said = false;
  double load = 0;
  if (was_said || ::getloadavg(&load, 1) != 1) return;
  const std::string problem =
      problem_of_waiting_threads(at::get_num_threads(), sys::usable_cores(), load);
  if (!problem.empty() && !was_said.exchange(true)) log::warning("{}", problem);
}

}  // namespace lockstep
