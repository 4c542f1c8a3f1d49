#include "launch/signals.h"

#include <lockstep/base/error.h>

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction now = {};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP})
    ::sigaddset(&wanted, signal);
  if (!is_ignored(SIGHUP)) ::sigaddset(&wanted, SIGHUP);
  descriptor_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) throw SystemError("making a queue of signals", errno);
  ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
}

SignalQueue::~SignalQueue() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::vector<int> SignalQueue::take() {
  std::vector<int> signals;
  signalfd_siginfo information;
  while (::read(descriptor_.get(), &information, sizeof(information)) == sizeof(information))
    signals.push_back(static_cast<int>(information.ssi_signo));
  return signals;
}

SignalActions::SignalActions() {
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &broken_pipe_);
  ::sigaction(SIGXFSZ, &action, &file_size_);
  ::sigaction(SIGCHLD, nullptr, &child_);
  action.sa_handler = SIG_DFL;
  const bool discarded = child_.sa_handler == SIG_IGN || (child_.sa_flags & SA_NOCLDWAIT) != 0;
  if (discarded) ::sigaction(SIGCHLD, &action, nullptr);
}

SignalActions::~SignalActions() {
  ::sigaction(SIGPIPE, &broken_pipe_, nullptr);
  ::sigaction(SIGXFSZ, &file_size_, nullptr);
  ::sigaction(SIGCHLD, &child_, nullptr);
}

}  // namespace lockstep::launch
