// No test may hang: one that runs longer than 60 s (LOCKSTEP_TEST_SECONDS) ends the program with
// its name and code 97, and all processes that it has started with it.
#pragma once

namespace lockstep::test {

inline constexpr int watchdog_exit_code = 97;

// Called once by main(). Uses SIGALRM and no thread: test programs fork, and neither LibTorch nor
// ThreadSanitizer likes a fork of a process with threads. Forked ranks have no watchdog of their
// own.
void install_watchdog();

}  // namespace lockstep::test
