#include "launch/agent_state.h"

#include "launch/signals.h"

#include <csignal>

namespace lockstep::launch {

void AgentStateMachine::all_started() { state_ = State::running; }

void AgentStateMachine::could_not_start(int alive) {
  living_ = alive;
  state_ = living_ == 0 ? State::done : State::failed;
  kill_now();
}

void AgentStateMachine::ended(int rank, sys::ExitStatus status, Time now) {
  --living_;
  // In `failed` the cause is already known: an earlier rank, or a rank that could not be started.
  if (!status.success() && cause_ < 0 && state_ != State::failed) {
    cause_ = rank;
    cause_status_ = status;
    if (state_ == State::running) {
      state_ = State::failed;
      if (grace_.notice) schedule(SIGTERM, now + *grace_.notice);
    }
  }
  end_if_none_lives();
}

void AgentStateMachine::end_ranks(Time now, Duration notice) {
  if (state_ != State::running && state_ != State::failed) return;
  state_ = State::failed;
  if (!next_ && !send_ && !told_) schedule(SIGTERM, now + notice);
}

void AgentStateMachine::left() {
  --living_;
  end_if_none_lives();
}

void AgentStateMachine::signalled(int signal, Time now) {
  if (!asks_to_stop(signal)) {
    send_ = signal;
  } else if (state_ == State::running) {
    state_ = State::stopping;
    stop_signal_ = signal;
    stop_asked_at_ = now;
    send_ = signal;
    schedule(SIGKILL, now + grace_.stop);
  } else if (signal == SIGINT && state_ == State::stopping && stop_signal_ == SIGINT) {
    if (now - stop_asked_at_ >= grace_.same_key) kill_now();
  } else if (signal == SIGINT && state_ == State::failed) {
    kill_now();
  } else if (state_ == State::stopping && !killing_) {
    if (signal == SIGINT) {  // a second signal kills
      stop_signal_ = SIGINT;
      stop_asked_at_ = now;
    }
    send_ = signal;
  }
}

void AgentStateMachine::time_is(Time now) {
  if (!next_ || now < *next_) return;
  next_.reset();
  if (next_signal_ == SIGTERM) {
    send_ = SIGTERM;
    told_ = true;
    schedule(SIGKILL, now + grace_.failure);
  } else {
    kill_now();
  }
}

std::optional<int> AgentStateMachine::take_signal() {
  std::optional<int> due = send_;
  send_.reset();
  return living_ > 0 ? due : std::nullopt;
}

int AgentStateMachine::exit_code() const {
  if (cause_ < 0) return 0;
  if (stop_signal_ != 0 && killing_ && cause_status_.signal == SIGKILL) return 128 + stop_signal_;
  return cause_status_.shell_code();
}

void AgentStateMachine::end_if_none_lives() {
  if (living_ > 0) return;
  state_ = State::done;
  next_.reset();
}

void AgentStateMachine::schedule(int signal, Time at) {
  next_signal_ = signal;
  next_ = at;
}

void AgentStateMachine::kill_now() {
  killing_ = true;
  told_ = true;
  send_ = SIGKILL;
  next_.reset();
}

}  // namespace lockstep::launch
