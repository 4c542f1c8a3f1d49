#include "elastic/round_watch.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <chrono>
#include <utility>

namespace lockstep {
namespace {

constexpr auto between_questions = std::chrono::milliseconds(50);
constexpr auto after_an_error = std::chrono::seconds(1);

}  // namespace

RoundWatch::RoundWatch(std::function<std::optional<std::string>()> ended)
    : ended_(std::move(ended)), thread_("round watch", [this] { look_until_stopped(); }) {}

RoundWatch::~RoundWatch() {
  {
    Lock lock(mutex_);
    is_stopped_ = true;
    group_.reset();
  }
  changed_.notify_all();
  thread_.join();
}

void RoundWatch::watch(const Group& group) {
  Lock lock(mutex_);
  group_ = group;
}

void RoundWatch::watch(std::function<void(std::string_view)> abort) {
  Lock lock(mutex_);
  abort_ = std::move(abort);
}

std::string RoundWatch::end() const {
  Lock lock(mutex_);
  return end_;
}

void RoundWatch::look_until_stopped() {
  std::optional<std::string> end;
  Duration pause = between_questions;
  for (;;) {
    {
      Lock lock(mutex_);
      changed_.wait_for(lock.native(), pause,
                        [&]() LOCKSTEP_REQUIRES(mutex_) { return is_stopped_; });
      if (is_stopped_) return;
    }
    try {
      pause = between_questions;
      end = ended_();
    } catch (const Error&) {
      pause = after_an_error;
    }
    if (!end) continue;
    std::optional<Group> group;
    std::function<void(std::string_view)> abort;
    {
      Lock lock(mutex_);
      end_ = *end;
      group = group_;
      abort = abort_;
    }
    has_ended_.store(true, std::memory_order_release);
    if (is_orderly(*end)) return;
    if (!group) continue;  // not made yet: try again
    const std::string reason = formatted("the round has ended: {}", *end);
    try {
      group->abort(reason);
    } catch (const Error&) {
      // The group is dead already.
    }
    if (abort) abort(reason);
    return;
  }
}

}  // namespace lockstep
