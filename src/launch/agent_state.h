// What the agent does next, decided from what has happened. Pure: it is told the time and sends
// nothing itself.
//
//   starting --all started--> running --a rank fails-----> failed ----+
//       |                        |                                    +--none alive--> done
//       +--cannot start--> failed+--asked to stop--> stopping --------+
//
// In `failed` the survivors first get a moment to notice by themselves (their errors name the dead
// rank), then SIGTERM, then SIGKILL. In `stopping` they have been passed the signal; SIGKILL
// follows.
//
// In a run that may have more rounds it speaks of one round. There the agents decide together what
// follows a failure, so that SIGTERM waits for end_ranks(); a rank that waits for the next round
// does not count as alive.
#pragma once

#include <lockstep/base/deadline.h>
#include "sys/process.h"

#include <chrono>
#include <optional>

namespace lockstep::launch {

enum class State { starting, running, stopping, failed, done };

struct Grace {
  Duration stop = std::chrono::seconds(30);
  Duration failure = std::chrono::seconds(5);
  // For survivors to find out themselves; nothing: until end_ranks().
  std::optional<Duration> notice = std::chrono::seconds(1);
  Duration same_key =
      std::chrono::milliseconds(300);  // a second SIGINT this soon is an echo of the first
};

class AgentStateMachine {
 public:
  using Time = Clock::time_point;

  AgentStateMachine(int ranks, Grace grace) : living_(ranks), grace_(grace) {}

  // What happened.
  void all_started();
  void could_not_start(int alive);  // a rank; `alive` others run already
  // A failure on another node, or another round: SIGTERM after the notice, unless they have been
  // told before.
  void end_ranks(Time now, Duration notice);
  void left();  // a rank waits for the next round
  void ended(int rank, sys::ExitStatus status, Time now);
  void signalled(int signal, Time now);
  void time_is(Time now);

  // The signal that all living ranks must get now, once.
  [[nodiscard]] std::optional<int> take_signal();
  // When time_is() must be called at the latest, if nothing else happens.
  [[nodiscard]] std::optional<Time> next() const { return next_; }

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] int living() const { return living_; }
  // The first rank that ended badly, or -1.
  [[nodiscard]] int cause() const { return cause_; }
  // The signal that asked for the end, or 0.
  [[nodiscard]] int stop_signal() const { return stop_signal_; }
  // 0 when all ranks ended well; else the cause's, but 128 + the signal asked for when the grace
  // period killed it.
  [[nodiscard]] int exit_code() const;

 private:
  void end_if_none_lives();
  void schedule(int signal, Time at);
  void kill_now();

  int living_;
  Grace grace_;
  State state_ = State::starting;
  int cause_ = -1;
  sys::ExitStatus cause_status_;
  int stop_signal_ = 0;
  Time stop_asked_at_;
  bool killing_ = false;
  bool told_ = false;         // SIGTERM has been due
  std::optional<int> send_;   // due now
  std::optional<Time> next_;  // when next_signal_ is due
  int next_signal_ = 0;
};

}  // namespace lockstep::launch
