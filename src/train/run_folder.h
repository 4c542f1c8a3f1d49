// The folder of a run, as the one rank that writes it sees it.
#pragma once

#include "elastic/round_fence.h"
#include "sys/file_lock.h"
#include "train/configuration.h"
#include "train/metrics.h"

#include <lockstep/checkpoint/training_state.h>

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
  // Of what is told, which outlives this.
  // `round`: of an elastic run. A lock that an earlier round of it still holds, on a host that was
  // cut off, is passed over: that one writes nothing here any more.
  explicit RunFolder(const Configuration& configuration,
                     const std::optional<RoundOfRun>& round = std::nullopt)
      : configuration_(configuration), path_(configuration.options.out) {
    if (round) fence_.emplace(path_, *round);
  }

  // The checkpoint to go on from, or nothing when the run begins. Changes nothing. Throws BadInput
  // when a run would be overwritten, or there is no checkpoint.
  [[nodiscard]] std::optional<std::filesystem::path> find_checkpoint();
  // In a later round of an elastic run: the newest one, if there is any. Changes nothing but the
  // lock.
  [[nodiscard]] std::optional<std::filesystem::path> newest_checkpoint();
  // The checkpoints before that one, newest first.
  [[nodiscard]] std::vector<std::filesystem::path> older_than(
      const std::filesystem::path& folder) const;
  // Makes the folder, writes config.toml and opens metrics.jsonl behind step `resumed_at`. What is
  // there of later steps, which will be made again, becomes abandoned-NAME: checkpoints,
  // model.safetensors and best.safetensors. But not where an earlier round of the same run
  // (`is_continued`) has made them: they come out the same once more.
  // Calls `is_taken` when the folder is known to be free for this run and nothing is in it yet: who
  // finds something there afterwards and was told finds what this run has written.
  void open(std::int64_t resumed_at, bool is_continued = false,
            const std::function<void()>& is_taken = {});
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
  [[nodiscard]] std::filesystem::path chosen() const;
  void set_aside_newer(std::int64_t step);
  void set_aside(const std::filesystem::path& path);

  const Configuration& configuration_;
  const Options& options_ = configuration_.options;
  std::filesystem::path path_;
  std::optional<sys::FileLock> lock_;
  std::optional<RoundFence> fence_;
  std::optional<MetricsFile> metrics_;
  std::vector<std::string> notices_;
};

}  // namespace lockstep::train
