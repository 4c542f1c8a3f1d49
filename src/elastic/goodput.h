// Goodput: the share of a training's time so far that was spent on steps that are in its state.
#pragma once

#include "base/fingerprint.h"
#include "sys/topology.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace lockstep {

// These numbers are part of the state, in seconds: "elastic.elapsed" since the training began,
// "elastic.useful", and the time at which they were written. That time is stored twice: by the
// host's monotonic clock ("elastic.at", of host "elastic.host"), which all of its processes share
// and no program can set, and by the wall clock ("elastic.day"), which is used only if rank 0 has
// moved to another host.
class Goodput {
 public:
  using Numbers = std::map<std::string, double>;

  // Call after the state was restored.
  void begin_round(Numbers& numbers) {
    elapsed_ = numbers["elastic.elapsed"];
    useful_ = numbers["elastic.useful"];
    if (numbers.contains("elastic.at")) {
      const bool is_here = numbers["elastic.host"] == host();
      elapsed_ += std::max(0.0, is_here ? seconds(Clock::now()) - numbers["elastic.at"]
                                        : day() - numbers["elastic.day"]);
    }
    last_ = Clock::now();
    write(numbers);
  }
  // Call before a step is committed.
  void count_step(Numbers& numbers) {
    const auto time = Clock::now();
    const double step = std::chrono::duration<double>(time - last_).count();
    useful_ += step;
    elapsed_ += step;
    last_ = time;
    write(numbers);
  }
  [[nodiscard]] double share() const {
    const double all = elapsed_ + std::chrono::duration<double>(Clock::now() - last_).count();
    return elapsed_ > 0 && all > 0 ? std::clamp(useful_ / all, 0.0, 1.0) : 1;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double seconds(Clock::time_point time) {
    return std::chrono::duration<double>(time.time_since_epoch()).count();
  }
  static double day() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  // A fingerprint of the host that fits into a double.
  static double host() {
    constexpr std::uint64_t mask = (std::uint64_t{1} << 52) - 1;
    static const auto of_this = static_cast<double>(fingerprint(sys::host_identity()) & mask);
    return of_this;
  }
  void write(Numbers& numbers) const {
    numbers["elastic.elapsed"] = elapsed_;
    numbers["elastic.useful"] = useful_;
    numbers["elastic.at"] = seconds(last_);
    numbers["elastic.host"] = host();
    numbers["elastic.day"] = day();
  }

  double elapsed_ = 0, useful_ = 0;
  Clock::time_point last_;
};

}  // namespace lockstep
