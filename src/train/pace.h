// Pace: how fast a run trains and what its steps cost, from one line of metrics to the next.
#pragma once

#include "train/step_usage.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/handle.h>

#include <chrono>
#include <cstdint>

namespace lockstep::train {

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

  // As read() has found them: 0 before.
  [[nodiscard]] double samples_per_second() const { return samples_per_second_; }
  [[nodiscard]] const StepUsage& usage() const { return usage_; }
  // Of the run, those before a resume included.
  [[nodiscard]] double seconds() const;

 private:
  [[nodiscard]] std::int64_t resident_bytes();

  double before_ = 0;
  Clock::time_point started_, read_at_;
  std::int64_t samples_ = 0, steps_ = 0;  // since read_at_
  StepTiming seconds_;
  double samples_per_second_ = 0;
  StepUsage usage_;
  std::int64_t resident_bytes_ = 0;  // as it was at resident_read_at_
  Clock::time_point resident_read_at_;
};

}  // namespace lockstep::train
