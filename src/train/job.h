// Job: which starts of a program belong together, as launchers say it. A run that a job has begun
// goes on without an option when the job is started again after a failure.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::train {

struct Job {
  std::string launch;              // the run of `lockstep run` or torchrun; empty: neither
  bool is_launched_again = false;  // in a later round, or after a restart
  std::string slurm;               // SLURM_JOB_ID, which a requeued job keeps
  bool is_requeued = false;
};

// By the environment. BadInput for counts that are no numbers.
[[nodiscard]] Job job_of_this_process();

// Whether this process is a restart of the job that wrote `file`. False if the file is missing or
// is another job's.
[[nodiscard]] bool is_restart_of(const std::filesystem::path& file, const Job& job);

// Removes the file if no launcher names a job. Durable only if the machine keeps running: a job
// does not outlive its machines.
void write_job(const std::filesystem::path& file, const Job& job);

}  // namespace lockstep::train
