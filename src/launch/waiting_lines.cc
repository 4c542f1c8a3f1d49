#include "launch/waiting_lines.h"

#include "base/format.h"
#include "launch/poller.h"
#include "sys/process.h"

#include <lockstep/base/error.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

namespace lockstep::launch {

namespace {

constexpr std::chrono::seconds first_line_after{1}, between_lines{10};

bool asks_for_the_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

// Every other thread holds it back, so it comes to this one.
void let_it_have_its_effect(int signal) {
  sigset_t one, before;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, &before);
  ::kill(::getpid(), signal);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

WaitingLines::WaitingLines(std::function<void(const std::string&)> say, bool signals)
    : say_(std::move(say)), end_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!end_) throw SystemError("making an eventfd", errno);
  if (signals) signals_.emplace();
  thread_ = sys::Thread("waiting lines", [this] { run(); });
}

WaitingLines::~WaitingLines() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = ::write(end_.get(), &one, sizeof(one));
  thread_.join();
}

void WaitingLines::wait_for(std::string what) {
  const Lock lock(mutex_);
  what_ = std::move(what);
}

std::string WaitingLines::what() const {
  const Lock lock(mutex_);
  return what_;
}

void WaitingLines::run() {
  Deadline next = Deadline::after(first_line_after);
  for (bool ended = false; !ended;) {
    Poller poller;
    poller.watch(end_.get(), POLLIN, [&] { ended = true; });
    if (signals_) poller.watch(signals_->descriptor(), POLLIN, [&] { take_signals(); });
    poller.wait(next);
    if (ended || !next.passed()) continue;
    next = Deadline::after(between_lines);
    if (const std::string waited_for = what(); !waited_for.empty())
      say_("waiting for " + waited_for);
  }
}

void WaitingLines::take_signals() {
  for (int signal : signals_->take()) {
    const std::string waited_for = what();
    if (asks_for_the_end(signal) && !waited_for.empty())
      say_(formatted("{} came while waiting for {}; no rank has been started",
                     sys::signal_name(signal), waited_for));
    let_it_have_its_effect(signal);
  }
}

}  // namespace lockstep::launch
