// A timer that interrupts this process every 2 ms, as that of a profiler does. For use in a forked
// process.
#pragma once

#include <csignal>

#include <sys/time.h>

namespace lockstep::test {

class AlarmTimer {
 public:
  AlarmTimer() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, nullptr);
    set(2000);
  }
  ~AlarmTimer() { set(0); }
  AlarmTimer(const AlarmTimer&) = delete;
  AlarmTimer& operator=(const AlarmTimer&) = delete;

 private:
  static void set(suseconds_t microseconds) {
    const itimerval every{{0, microseconds}, {0, microseconds}};
    ::setitimer(ITIMER_REAL, &every, nullptr);
  }
};

}  // namespace lockstep::test
