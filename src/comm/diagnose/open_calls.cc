#include "comm/diagnose/open_calls.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::diagnose {
namespace {

// The condition variable waits in parts, because very long durations overflow in it.
constexpr Duration longest_sleep = std::chrono::hours(1);
constexpr Duration sleep_while_failing = std::chrono::seconds(1);

}  // namespace

void OpenCalls::refuse_if_failed(Collective collective) {
  Lock lock(mutex_);
  failure_.refuse_if_any(name_of(collective), group_);
}

void OpenCalls::add(ChannelKey channel, const CallRecord& call, std::uint64_t fingerprint) {
  Lock lock(mutex_);
  failure_.refuse_if_any(name_of(call.collective), group_);
  history_.note(channel, call, fingerprint, true);
}

void OpenCalls::complete(CallId id) {
  Lock lock(mutex_);
  history_.complete(id);
  changed_.notify_all();
}

bool OpenCalls::done(CallId id) {
  Lock lock(mutex_);
  return failure_ || history_.find_open(id) == nullptr;
}

bool OpenCalls::has_failed() {
  Lock lock(mutex_);
  return failure_ || is_failing_;
}

void OpenCalls::fail(std::exception_ptr error) {
  Lock lock(mutex_);
  failure_.set(std::move(error));
  changed_.notify_all();
}

bool OpenCalls::begin_to_fail() {
  Lock lock(mutex_);
  if (failure_ || is_failing_) return false;
  is_failing_ = true;
  return true;
}

void OpenCalls::wait(CallId id, const Waiting& waiting) {
  Lock lock(mutex_);
  const auto* open = history_.find_open(id);
  if (open == nullptr) return;
  const auto call = open->call;
  const auto begin = Clock::now();
  auto deadline = Deadline::after(call.timeout);
  auto notice = deadline.is_never() ? deadline : Deadline::after(notice_after);
  bool is_over = false;
  while (history_.find_open(id) != nullptr) {
    failure_.rethrow_if_any();
    if (!is_over && !is_failing_ && deadline.passed()) {
      is_over = true;
      lock.unlock();
      waiting.on_deadline(call);
      lock.lock();
      continue;
    }
    if (!is_over && !is_failing_ && notice.passed()) {
      notice = Deadline::never();
      lock.unlock();
      waiting.on_notice(call, Clock::now() - begin);
      lock.lock();
      continue;
    }
    auto most = std::min<Duration>({deadline.left(), notice.left(), longest_sleep});
    changed_.wait_for(lock.native(), is_over || is_failing_ ? sleep_while_failing : most);
  }
}

bool OpenCalls::drain(const rendezvous::GracePeriod& grace) {
  Lock lock(mutex_);
  auto deadline = Deadline::after(grace.length(history_.longest_timeout()));
  while (history_.open() > 0 && !failure_ && !deadline.passed())
    changed_.wait_for(lock.native(), std::min(deadline.left(), longest_sleep));
  bool all = history_.open() == 0 && !failure_;
  failure_.set(std::make_exception_ptr(Aborted("this rank has left the group")));
  return all;
}

}  // namespace lockstep::diagnose
