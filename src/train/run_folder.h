// The folder of a run: RunFolder, for the one rank that writes it.
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

// One run at a time: from find_checkpoint() on (from open() on where the folder is new) the object
// holds the lock OUT/run.lock, and a run that finds it held is refused with BadInput.
class RunFolder {
 public:
  // A line of OUT/.job. A run goes on without an option if a launcher starts the job that began it
  // again, after a failure.
  struct Job {
    std::string line;
    bool is_started_again = false;
  };

  // Of what is told, which outlives this. BadInput for counts of a launcher that are no numbers.
  // `round`: of an elastic run. A lock that an earlier round of it still holds, on a host that was
  // cut off, is passed over: that one writes nothing here any more.
  explicit RunFolder(const Configuration& configuration,
                     const std::optional<RoundOfRun>& round = std::nullopt);

  // The checkpoint to go on from, or nothing if the run begins:
  //  - resume, resume_from: the newest one, or the one that is named; BadInput if there is none;
  //  - a restart of the job that began the run, resume_auto: the newest one, if any;
  //  - overwrite: nothing;
  //  - else nothing; BadInput if a checkpoint or a model would be overwritten.
  // Changes nothing but the lock.
  [[nodiscard]] std::optional<std::filesystem::path> find_checkpoint();
  // The same without the lock, before any rank is started: BadInput alone counts.
  void check_start() const;
  // In a later round of an elastic run: the newest one, if there is any. Changes nothing but the
  // lock.
  [[nodiscard]] std::optional<std::filesystem::path> newest_checkpoint();
  // Collective: CommonFailure for a checkpoint that is not whole names the newest older one that
  // is, and the command to go on from it.
  void verify(Group& world, const std::filesystem::path& folder) const;
  struct Opening {
    std::int64_t resumed_at = 0;  // the step of the checkpoint; 0: the run begins
    bool repeats_row = false;     // the row of that step is written again
    bool is_continued = false;    // an earlier round of this elastic run has opened the folder
    // Called when the folder is known to be free for this run and nothing is in it yet: a caller
    // that was told knows that later files are this run's.
    std::function<void()> is_taken = {};
  };
  // Makes the folder, writes config.toml and opens metrics.jsonl behind step `resumed_at`. Files of
  // later steps, which will be made again, become abandoned-NAME: checkpoints, model.safetensors,
  // best.safetensors; and if the run begins where one had saved no checkpoint, its metrics and
  // models. Files that earlier rounds or starts of the same job have made stay: they come out the
  // same once more. With options.overwrite removes the files of earlier runs.
  void open(const Opening& opening);
  // What should be said of the above, once; lines without their ends.
  [[nodiscard]] std::vector<std::string> take_notices() { return std::move(notices_); }

  // Before anything in the folder gets its name: PeerLost where a later round has taken it.
  void check() const {
    if (fence_) fence_->check();
  }
  void append(const MetricsRow& row) {
    check();
    metrics_->append(row);
  }
  // result.txt: the run's last line, for scripts.
  void write_result(const std::string& line) const;
  [[nodiscard]] std::filesystem::path best_file() const { return path_ / "best.safetensors"; }

 private:
  void lock();
  void check_is_new() const;
  [[nodiscard]] std::optional<std::filesystem::path> chosen_start() const;
  [[nodiscard]] std::filesystem::path chosen() const;
  // Whether a launcher has started the job again that began the run.
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
  const std::vector<Job> jobs_;  // of this process
  std::optional<sys::FileLock> lock_;
  std::optional<RoundFence> fence_;
  std::optional<MetricsFile> metrics_;
  std::vector<std::string> notices_;
};

}  // namespace lockstep::train
