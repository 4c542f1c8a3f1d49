// Goodput: which share of the time since a training began was spent on steps that are in its state.
#pragma once

#include "base/fingerprint.h"
#include "sys/topology.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace lockstep {

// The numbers travel with the state, in seconds: "elastic.elapsed" since the training began,
// "elastic.useful", and when that was written: by the host's monotonic clock, which is the same in
// all of its processes and which nobody sets ("elastic.at", of host "elastic.host"), and by the
// clock of the day ("elastic.day"), which alone counts where rank 0 has come to another host.
class Goodput {
 public:
  using Numbers = std::map<std::string, double>;

  // After the state was taken up.
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
  // A step is about to be committed.
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
  // A number that a double holds.
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
