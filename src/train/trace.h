// Trace: what a rank does in some of its steps, as a Chrome trace (--trace FILE): operations, and
// the spans "data", "forward", "backward", "communication" (blocked in it) and "update", by
// LibTorch's profiler.
//
// One of a process records at a time.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/train/options.h>

#include <cstdint>
#include <filesystem>

namespace lockstep::train {

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
