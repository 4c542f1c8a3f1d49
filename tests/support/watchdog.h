// No test may hang: one that runs longer than 60 s (LOCKSTEP_TEST_SECONDS) ends the program with
// its name and code 97.
#pragma once

namespace lockstep::test {

inline constexpr int watchdog_exit_code = 97;

// Called once by main(). Uses SIGALRM and no thread: test programs fork, and neither LibTorch nor
// ThreadSanitizer likes a fork of a process with threads. Forked ranks have no watchdog of their
// own; they end with the test program.
void install_watchdog();

}  // namespace lockstep::test
