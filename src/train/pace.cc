#include "train/pace.h"

#include "sys/resident.h"

#include <algorithm>

namespace lockstep::train {
namespace {

double seconds_since(Pace::Clock::time_point start) {
  return std::chrono::duration<double>(Pace::Clock::now() - start).count();
}

}  // namespace

void Pace::start(double before) {
  before_ = before;
  started_ = read_at_ = Clock::now();
}

void Pace::add_step(std::int64_t samples, const StepTiming& seconds) {
  samples_ += samples;
  seconds_.forward += seconds.forward;
  seconds_.backward += seconds.backward;
  seconds_.exposed += seconds.exposed;
  seconds_.update += seconds.update;
  ++steps_;
}

void Pace::read(Group& world, std::int64_t model_bytes) {
  samples_per_second_ = static_cast<double>(samples_) / std::max(1e-9, seconds_since(read_at_));
  auto steps = static_cast<double>(std::max<std::int64_t>(1, steps_));
  usage_ = most_of_all(world, {.resident_bytes = resident_bytes(),
                               .model_bytes = model_bytes,
                               .exposed_seconds = seconds_.exposed / steps,
                               .forward_seconds = seconds_.forward / steps,
                               .backward_seconds = seconds_.backward / steps,
                               .update_seconds = seconds_.update / steps});
  samples_ = steps_ = 0;
  seconds_ = {};
  read_at_ = Clock::now();
}

// Where every step is reported, reading this anew each time would cost more than a small step.
std::int64_t Pace::resident_bytes() {
  if (resident_bytes_ == 0 || seconds_since(resident_read_at_) > 1) {
    resident_bytes_ = sys::proportional_bytes();
    resident_read_at_ = Clock::now();
  }
  return resident_bytes_;
}

double Pace::seconds() const { return before_ + seconds_since(started_); }

}  // namespace lockstep::train
