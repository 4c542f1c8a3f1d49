// Measures where the time goes between the loss of a rank and the first step of the next round, as
// seen by one process.
#pragma once

#include "base/format.h"

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

class RoundTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // Calls in chronological order. A process that was started for a round begins with placed().
  void lost() { lost_ = Clock::now(); }  // the body of the last round has ended
  // The last round's group, model and optimizer are destroyed.
  void left() { left_ = Clock::now(); }
  void placed() {  // the next round is known
    placed_ = Clock::now();
    if (lost_ == Clock::time_point()) lost_ = left_ = placed_;
  }
  void joined() { joined_ = restored_ = Clock::now(); }  // the group is made
  void restored() { restored_ = Clock::now(); }          // model and optimizer are restored

  // The text for the first commit of the round: "leave=3ms wait=41ms join=12ms restore=25ms
  // step=9ms".
  [[nodiscard]] std::string text() const {
    return formatted("leave={}ms wait={}ms join={}ms restore={}ms step={}ms", between(lost_, left_),
                     between(left_, placed_), between(placed_, joined_),
                     between(joined_, restored_), between(restored_, Clock::now()));
  }

 private:
  static std::int64_t between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count();
  }

  Clock::time_point lost_, left_, placed_, joined_, restored_;
};

}  // namespace lockstep
