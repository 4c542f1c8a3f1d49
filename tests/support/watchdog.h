// No test may hang: one that runs longer than 60 s (LOCKSTEP_TEST_SECONDS) ends the program with
// its name and code 97, and all processes that it has started with it.
#pragma once

namespace lockstep::test {

inline constexpr int watchdog_exit_code = 97;

// Called once by main(). Uses SIGALRM and no thread: test programs fork, and neither LibTorch nor
// ThreadSanitizer likes a fork of a process with threads. Forked ranks have no watchdog of their
// own.
void install_watchdog();

// The test that runs now may take that long from here on, for what is slow on a busy machine and is
// not the test's subject. Nothing in a forked rank.
void allow_more_time(int seconds);

}  // namespace lockstep::test
