// Prevents tests from hanging: if a test runs for more than 60 s (LOCKSTEP_TEST_SECONDS), prints
// its name and ends the program with code 97, and all processes that it has started.
#pragma once

namespace lockstep::test {

inline constexpr int watchdog_exit_code = 97;

// Called once by main(). Uses SIGALRM instead of a thread: test programs fork, and neither LibTorch
// nor ThreadSanitizer supports forking a process with threads well. Forked ranks have no watchdog
// of their own.
void install_watchdog();

// Gives the current test this much time from now on, for a step that is slow on a busy host and not
// under test. Does nothing in a forked rank.
void allow_more_time(int seconds);

}  // namespace lockstep::test
