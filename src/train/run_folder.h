// RunFolder: the folder of a run, for the one rank that writes it.
#pragma once

#include "elastic/round_fence.h"
#include "sys/file_lock.h"
#include "train/configuration.h"
#include "train/metrics.h"

#include <lockstep/comm/group.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

// Only one run may use the folder at a time: from find_checkpoint() on (for a new folder: from
// open() on), the object holds the lock OUT/run.lock. If another run holds the lock, throws
// BadInput.
class RunFolder {
 public:
  // A line of OUT/.job. If a launcher restarts the job that began the run after a failure, the run
  // continues without an option.
  struct Job {
    std::string line;
    bool is_started_again = false;
  };

  // The configuration must outlive this object. Throws BadInput if a launcher's counts are not
  // numbers. `round` is given in an elastic run. If an earlier round of this run, on a host that
  // was cut off, still holds the lock, the lock is ignored: that round no longer writes into the
  // folder.
  explicit RunFolder(const Configuration& configuration,
                     const std::optional<RoundOfRun>& round = std::nullopt);

  // Returns the checkpoint to continue from, or std::nullopt if the run begins:
  //   - resume, resume_from: the newest or the named checkpoint; throws BadInput if it is missing;
  //   - a restart of the job that began the run, resume_auto: the newest one, if any;
  //   - overwrite: std::nullopt;
  //   - otherwise: std::nullopt; throws BadInput if a checkpoint or a model would be overwritten.
  // Changes nothing except the lock.
  [[nodiscard]] std::optional<std::filesystem::path> find_checkpoint();
  // Makes the same checks without the lock, before any rank starts. Only throws BadInput.
  void check_start() const;
  // Returns the newest checkpoint, if any, in a later round of an elastic run. Changes nothing
  // except the lock.
  [[nodiscard]] std::optional<std::filesystem::path> newest_checkpoint();
  // Verifies a checkpoint. Collective. If it is damaged, throws CollectiveFailure, whose message
  // has the newest older checkpoint that is whole, and the command that continues from it.
  void verify(Group& world, const std::filesystem::path& folder) const;
  struct Opening {
    std::int64_t resumed_at = 0;  // step of the checkpoint; 0: the run begins
    bool repeats_row = false;     // write the row of that step again
    bool is_continued = false;    // an earlier round of this elastic run has opened the folder
    // Called when the folder is reserved for this run but still unchanged, so that all later files
    // are known to belong to this run.
    std::function<void()> is_taken = {};
  };
  // Makes the folder, writes config.toml and opens metrics.jsonl after step `resumed_at`. Files of
  // later steps, which will be repeated, are renamed to abandoned-NAME: checkpoints,
  // model.safetensors, best.safetensors. If the run begins where another run had saved no
  // checkpoint, that run's metrics, models and flight records are renamed too. Files of earlier
  // rounds or starts of the same job stay, because they will be equal. With options.overwrite,
  // removes the files of earlier runs.
  void open(const Opening& opening);
  // Returns messages about these changes, once; lines without line ends.
  [[nodiscard]] std::vector<std::string> take_notices() { return std::move(notices_); }

  // Call before a file in the folder gets its final name. Throws PeerLost if a later round has
  // taken the folder.
  void check() const {
    if (fence_) fence_->check();
  }
  void append(const MetricsRow& row) {
    check();
    metrics_->append(row);
  }
  // Writes result.txt, the run's last line, for scripts.
  void write_result(const std::string& line) const;
  [[nodiscard]] std::filesystem::path best_file() const { return path_ / "best.safetensors"; }

 private:
  void lock();
  void check_is_new() const;
  [[nodiscard]] std::optional<std::filesystem::path> chosen_start() const;
  [[nodiscard]] std::filesystem::path chosen() const;
  // Returns true if a launcher has restarted the job that began the run.
  [[nodiscard]] bool is_restart() const;
  [[nodiscard]] std::string newest_whole_before(Group& world,
                                                const std::filesystem::path& folder) const;
  void make_room(const Opening& opening);
  void remove_runs();
  void set_aside_newer(std::int64_t step);
  void set_aside_unfinished();
  void set_aside(const std::filesystem::path& path, const std::string& why);

  const Configuration& configuration_;
  const Options& options_ = configuration_.options;
  std::filesystem::path path_;
  const std::vector<Job> jobs_;  // jobs of this process
  std::optional<sys::FileLock> lock_;
  std::optional<RoundFence> fence_;
  std::optional<MetricsFile> metrics_;
  std::vector<std::string> notices_;
};

}  // namespace lockstep::train
