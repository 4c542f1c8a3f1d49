// State machine that decides the agent's next action from the events so far. Pure: the caller
// passes the time and sends the signals.
//
//   starting --all started--> running --a rank fails-----> failed ----+
//       |                        |                                    +--none alive--> done
//       +--cannot start--> failed+--asked to stop--> stopping --------+
//
// In `failed` the surviving ranks first get a moment to notice the failure by themselves (their
// errors name the dead rank), then SIGTERM, then SIGKILL. In `stopping` the signal has been
// forwarded to the ranks; SIGKILL follows.
//
// In a run that may have more rounds, the state machine covers one round. The agents then decide
// together how to react to a failure, so SIGTERM is sent only after end_ranks(); a rank that waits
// for the next round does not count as alive.
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
  // Time for survivors to notice the failure by themselves; std::nullopt: until end_ranks().
  std::optional<Duration> notice = std::chrono::seconds(1);
  Duration same_key =
      std::chrono::milliseconds(300);  // a second SIGINT within this time is a duplicate
};

class AgentStateMachine {
 public:
  using Time = Clock::time_point;

  AgentStateMachine(int ranks, Grace grace) : living_(ranks), grace_(grace) {}

  // Events.
  void all_started();
  void could_not_start(int alive);  // a rank could not start; `alive` other ranks are running
  // Call after a failure on another node or when another round begins: sends SIGTERM after
  // `notice`, unless it was sent before.
  void end_ranks(Time now, Duration notice);
  void left();  // a rank waits for the next round
  void ended(int rank, sys::ExitStatus status, Time now);
  void signalled(int signal, Time now);
  void time_is(Time now);

  // Returns, once, the signal that must be sent to all living ranks now.
  [[nodiscard]] std::optional<int> take_signal();
  // The latest time for the next call of time_is() if nothing else happens.
  [[nodiscard]] std::optional<Time> next() const { return next_; }

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] int living() const { return living_; }
  // The first rank that failed, or -1.
  [[nodiscard]] int cause() const { return cause_; }
  // The signal that requested the stop, or 0.
  [[nodiscard]] int stop_signal() const { return stop_signal_; }
  // Returns 0 if all ranks succeeded, else the exit code of cause(). If the grace period expired
  // and killed that rank, returns 128 + the signal that requested the stop.
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
  bool told_ = false;         // SIGTERM was scheduled
  std::optional<int> send_;   // to be sent now
  std::optional<Time> next_;  // when next_signal_ is due
  int next_signal_ = 0;
};

}  // namespace lockstep::launch
