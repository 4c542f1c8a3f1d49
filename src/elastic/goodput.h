// Goodput: which share of the time since a training began was spent on steps that are in its state.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

namespace lockstep {

// The numbers travel with the state: "elastic.began" in seconds of the system's clock, and
// "elastic.useful" in seconds.
class Goodput {
 public:
  using Numbers = std::map<std::string, double>;

  // After the state was taken up.
  void begin_round(Numbers& numbers) {
    const auto [began, is_new] = numbers.try_emplace(began_name, now());
    began_ = began->second;
    useful_ = numbers[useful_name];
    if (is_new) useful_ = 0;
    last_ = Clock::now();
  }
  // A step is about to be committed.
  void count_step(Numbers& numbers) {
    const auto time = Clock::now();
    useful_ += std::chrono::duration<double>(time - last_).count();
    last_ = time;
    numbers[useful_name] = useful_;
  }
  [[nodiscard]] double share() const {
    const double all = now() - began_;
    return all > 0 && began_ > 0 ? std::clamp(useful_ / all, 0.0, 1.0) : 1;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* began_name = "elastic.began";
  static constexpr const char* useful_name = "elastic.useful";
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  double began_ = 0, useful_ = 0;
  Clock::time_point last_;
};

}  // namespace lockstep
