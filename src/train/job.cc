#include "train/job.h"

#include "base/environment.h"
#include "base/format.h"
#include "launch/environment.h"
#include "sys/files.h"
#include "sys/plain_file.h"
#include "sys/topology.h"

#include <unistd.h>

#include <cstdint>
#include <sstream>
#include <system_error>

namespace lockstep::train {
namespace {

constexpr const char* launch_entry = "launch ";
constexpr const char* slurm_entry = "slurm ";

bool is_positive(const char* variable) { return environment::integer(variable, 0).value_or(0) > 0; }

// torchrun calls every run "none" unless it is told otherwise: then its agent, which starts all
// rounds of a run, tells runs apart.
std::string launch_of_this_process() {
  const std::string run = environment::text(launch::variable::run_id).value_or("");
  if (run != "none") return run;
  return formatted("none of process {} on host {}", ::getppid(), sys::host_name());
}

}  // namespace

Job job_of_this_process() {
  return {.launch = launch_of_this_process(),
          .is_launched_again =
              is_positive(launch::variable::restart_count) || is_positive(launch::variable::round),
          .slurm = environment::text("SLURM_JOB_ID").value_or(""),
          .is_requeued = is_positive("SLURM_RESTART_COUNT")};
}

bool is_restart_of(const std::filesystem::path& file, const Job& job) {
  constexpr std::uint64_t most_bytes = 64 << 10;
  std::error_code is_unknown;
  if (!std::filesystem::exists(file, is_unknown)) return false;
  std::istringstream lines(sys::read_plain_file(file, most_bytes));
  for (std::string line; std::getline(lines, line);) {
    if (job.is_launched_again && !job.launch.empty() && line == launch_entry + job.launch)
      return true;
    if (job.is_requeued && !job.slurm.empty() && line == slurm_entry + job.slurm) return true;
  }
  return false;
}

void write_job(const std::filesystem::path& file, const Job& job) {
  std::string text;
  if (!job.launch.empty()) text += formatted("{}{}\n", launch_entry, job.launch);
  if (!job.slurm.empty()) text += formatted("{}{}\n", slurm_entry, job.slurm);
  if (!text.empty()) return sys::AtomicFile::write_for_now(file, text);
  std::error_code is_missing;
  std::filesystem::remove(file, is_missing);
}

}  // namespace lockstep::train
