// What a run measures: its pace and memory, the rows of metrics.jsonl, and traces of single steps.
//
// metrics.jsonl has one JSON object a line, for programs to read while the run goes on and
// afterwards.
//
//   {"step":250,"epoch":0,"loss":2.31,"val_loss":2.29,"lr":0.00099,"samples_per_second":391.2,
//    "tokens_per_second":25036.8,"resident_bytes":431751168,"model_bytes":12910592,
//    "exposed_seconds":0.0031,"forward_seconds":0.0102,"backward_seconds":0.0214,
//    "update_seconds":0.0017,"seconds":8.1}                             (on one line)
//
// `step` counts updates that were made; a row without an evaluation has no val_loss and no
// accuracy, one without a sample no sample. Steps rise from line to line, also over a resume.
// docs/training.md explains each field.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/options.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::train {

struct MetricsRow {
  std::int64_t step = 0;   // updates made
  std::int64_t steps = 0;  // updates to make; of the progress line alone
  std::int64_t epoch = 0;
  double loss = 0;  // of the step's global batch, before its update
  std::optional<double> val_loss = {};
  std::optional<double> accuracy = {};  // share of validation samples, 0 to 1
  // Where val_loss is of some batches of the validation data only: of how many.
  std::optional<std::int64_t> eval_batches = {};
  double lr = 0;
  std::optional<double> loss_scale = {};         // of float16
  double samples_per_second = 0;                 // over all ranks, since the last row; 0: not known
  std::optional<double> tokens_per_second = {};  // of tasks that have tokens
  // Of the rank that has the most each.
  // Of its process, read once a second at most; memory shared with others counts in parts.
  std::int64_t resident_bytes = 0;  // 0: not known
  std::int64_t model_bytes = 0;     // of parameters, gradients and optimizer state
  double exposed_seconds = 0;       // a step, waiting for communication, since the last row
  // The same, of the strategies that measure them: see StepTiming (lockstep/parallel/handle.h).
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;
  double seconds = 0;                       // spent in the run so far, all resumes together
  std::optional<double> seconds_left = {};  // where it is known; of the progress line alone
  std::optional<std::string> sample = {};   // what the model made up, valid UTF-8
};

// The row without the line's end. Not-a-number becomes null.
[[nodiscard]] std::string metrics_line(const MetricsRow& row);

// Used by one rank. Throws SystemError when the disk refuses.
class MetricsFile {
 public:
  // Goes on after step `resumed_at`: rows of later steps, which the resumed run makes again, and a
  // torn last line are removed first. 0 begins an empty file.
  MetricsFile(std::filesystem::path path, std::int64_t resumed_at);

  // Appends one whole line; readers never see a part of it.
  void append(const MetricsRow& row);

 private:
  std::filesystem::path path_;
};

// How fast a run trains and what its steps cost, from one row to the next.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // Time counts from here; `before` are the seconds of the runs that this one goes on from.
  void start(double before);
  // A step was made: the rows of all ranks, and this rank's seconds, `exposed` all of those in
  // waits for communication.
  void add_step(std::int64_t samples, const StepTiming& seconds);
  // What was done since then is no training: the rate leaves it out.
  void leave_out(Clock::time_point began) { read_at_ += Clock::now() - began; }
  // Collective: closes what was counted since the last call. `model_bytes` are this rank's.
  void read(Group& world, std::int64_t model_bytes);

  // The rate, bytes and seconds of a row, as read() has found them: 0 before.
  [[nodiscard]] MetricsRow row() const;
  // Of the run, those before a resume included.
  [[nodiscard]] double seconds() const;

 private:
  [[nodiscard]] std::int64_t resident_bytes();

  double before_ = 0;
  Clock::time_point started_, read_at_;
  std::int64_t samples_ = 0, steps_ = 0;  // since read_at_
  StepTiming seconds_;
  MetricsRow row_;
  std::int64_t resident_bytes_ = 0;  // as it was at resident_read_at_
  Clock::time_point resident_read_at_;
};

// What a rank does in some of its steps, as a Chrome trace (--trace FILE): operations, and the
// spans "data", "forward", "backward", "communication" (blocked in it) and "update", by LibTorch's
// profiler. One of a process records at a time.
class Trace {
 public:
  // Records nothing where the options ask for none.
  Trace(const Options& options, const Group& world);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace();

  // Of each step of this start. The first two are left out: memory is laid out in them.
  void begin_step();
  // Whether the last step that is recorded has ended; the same on all ranks.
  [[nodiscard]] bool is_complete() const;
  // The file, where something was recorded since. SystemError where it cannot be written.
  void write();

 private:
  void start();

  std::filesystem::path file_;  // this rank's; empty: none
  std::int64_t steps_ = 0;      // to record
  std::int64_t step_ = 0;       // steps that have begun
  bool is_recording_ = false;
};

// The file of one rank: FILE, or of several ranks "trace.rank1.json".
[[nodiscard]] std::filesystem::path trace_file(const std::filesystem::path& file, int rank,
                                               int ranks);

}  // namespace lockstep::train

#pragma GCC visibility pop
