#include "comm/diagnose/call_watch.h"

#include "base/format.h"
#include "base/log.h"
#include "sys/process_info.h"

#include <algorithm>
#include <atomic>

#include <lockstep/base/error.h>

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

namespace {

std::string key_of(std::string_view group, int rank) {
  return formatted("lockstep/calls/{}/{}", group, rank);
}

}  // namespace

std::string key_of_end(std::string_view group, std::string_view name) {
  return formatted("lockstep/end/{}/{}", group, name);
}

class WatchCore {
 public:
  explicit WatchCore(std::shared_ptr<Store> store)
      : store_(std::move(store)), process_(sys::process_identity()) {}

  [[nodiscard]] const std::shared_ptr<Store>& store() const { return store_; }
  [[nodiscard]] const std::string& process() const { return process_; }

  void add(std::shared_ptr<WatchedGroup> group) {
    Lock lock(mutex_);
    groups_.push_back(std::move(group));
  }
  void remove(const std::shared_ptr<WatchedGroup>& group) {
    Lock lock(mutex_);
    std::erase(groups_, group);
  }
  void something_was_posted() {
    if (dirty_.load(std::memory_order_relaxed)) return;
    {
      Lock lock(mutex_);
      dirty_ = true;
    }
    changed_.notify_all();
  }

  // The thread's function.
  void run() {
    Lock lock(mutex_);
    while (!ending_) {
      changed_.wait(lock.native(),
                    [this]() LOCKSTEP_REQUIRES(mutex_) { return ending_ || dirty_; });
      dirty_ = false;
      auto groups = groups_;
      lock.unlock();
      bool again = false;
      for (const auto& group : groups) again = look(*group) || again;
      groups.clear();
      lock.lock();
      changed_.wait_for(lock.native(), CallWatch::period,
                        [this]() LOCKSTEP_REQUIRES(mutex_) { return ending_; });
      if (again) dirty_ = true;
    }
    has_ended_ = true;
    changed_.notify_all();
  }

  // Asks the thread to end; returns true if it has.
  [[nodiscard]] bool end(Duration limit) {
    Lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock.native(), limit,
                             [this]() LOCKSTEP_REQUIRES(mutex_) { return has_ended_; });
  }

 private:
  // Returns true if another look() may find something even if nothing is posted here.
  [[nodiscard]] bool look(WatchedGroup& group) {
    if (group.is_over_) return false;
    std::vector<ChannelKey> channels;
    bool is_new = false;
    const bool is_open = group.calls_->with_history([&](const CallHistory& history) {
      is_new = group.stated_ != history.version();
      group.stated_ = history.version();
      if (is_new) channels = history.channels();
      return history.open() > 0;
    });
    try {
      if (!is_new && is_open) ask_for_end(group);
      if (!is_new) return is_open && !group.is_over_;
      // Write before reading: if two ranks do this at once, at least one of them sees the other's
      // statement.
      group.state(*store_, process_, WatchedGroup::Presence::stays);
      compare(group, group.partners(channels));
    } catch (const std::exception& error) {
      // Without the store, calls cannot be compared; the backend reports the consequence for the
      // group.
      group.is_over_ = true;
      log::debug("group {}: comparing calls: {}", group.group_.name(), error.what());
    }
    return is_open && !group.is_over_;
  }

  void ask_for_end(WatchedGroup& group) {
    if (!store_->try_get(key_of_end(group.group_.name(), "report"))) return;
    group.is_over_ = true;
    tell(group, {});
  }

  // Calls the group's on_end, unless the group has left.
  static void tell(WatchedGroup& group, const std::string& mismatch) {
    Lock gate(group.gate_);
    if (!group.gone_) group.on_end_(mismatch);
  }

  void compare(WatchedGroup& group, const std::vector<int>& partners) {
    for (int other : partners) {
      auto theirs = statement_of(*store_, group.group_.name(), other);
      if (!theirs) continue;
      auto difference = group.calls_->with_history(
          [&](const CallHistory& history) { return history.compare(*theirs); });
      if (!difference) continue;
      group.is_over_ = true;
      return tell(group, mismatch_sentence(*difference, group.group_, group.rank_, other));
    }
  }

  const std::shared_ptr<Store> store_;
  const std::string process_;
  std::atomic<bool> dirty_{false};
  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<WatchedGroup>> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool has_ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// No post is missed: either the watch's look() finds the call in the history, or it has cleared
// dirty_ before something_was_posted() reads it.
void WatchedGroup::note_post() { core_.something_was_posted(); }

void WatchedGroup::state(Store& store, std::string_view process, Presence presence) {
  Lock in_order(stating_);
  if (presence != Presence::stays) presence_ = presence;
  const auto now = presence_;
  store.set(key_of(group_.name(), rank_), calls_->with_history([&](const CallHistory& history) {
    return history.statement(process, now != Presence::stays, now == Presence::left_by_exception);
  }));
}

std::vector<int> WatchedGroup::partners(const std::vector<ChannelKey>& channels) const {
  std::vector<int> result;
  for (auto channel : channels) {
    if (channel.is_collective()) {
      result.push_back((rank_ + 1) % size_);
      result.push_back((rank_ + size_ - 1) % size_);
    } else {
      result.push_back(channel.source == rank_ ? channel.destination : channel.source);
    }
  }
  std::ranges::sort(result);
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

CallWatch::CallWatch(std::shared_ptr<Store> store, Duration store_timeout)
    : store_timeout_(store_timeout),
      core_(std::make_shared<WatchCore>(std::move(store))),
      thread_("call watch", [core = core_] { core->run(); }) {}

CallWatch::~CallWatch() {
  if (core_->end(store_timeout_)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::shared_ptr<WatchedGroup> CallWatch::join(const GroupNames& names, int rank, int size,
                                              std::shared_ptr<OpenCalls> calls,
                                              std::function<void(const std::string&)> on_end) {
  std::shared_ptr<WatchedGroup> group(
      new WatchedGroup(*core_, names, rank, size, std::move(calls), std::move(on_end)));
  group->state(*core_->store(), core_->process(), WatchedGroup::Presence::stays);
  core_->add(group);
  return group;
}

void CallWatch::leave(const std::shared_ptr<WatchedGroup>& group, bool is_complete,
                      bool by_exception) noexcept {
  {
    Lock gate(group->gate_);
    group->gone_ = true;
  }
  core_->remove(group);
  if (!is_complete) return;
  const auto presence =
      by_exception ? WatchedGroup::Presence::left_by_exception : WatchedGroup::Presence::left;
  auto say = [core = core_, group, presence] {
    try {
      group->state(*core->store(), core->process(), presence);
    } catch (const std::exception& error) {
      // The store's server may have left before this rank; then no rank is left to inform.
      log::debug("group {}: leaving: {}", group->group_.name(), error.what());
    }
  };
  try {
    static_cast<void>(sys::run_with_timeout(say, store_timeout_));
  } catch (const std::exception& error) {  // the thread could not be started
    log::debug("group {}: leaving: {}", group->group_.name(), error.what());
  }
}

std::optional<Statement> statement_of(Store& store, std::string_view group, int rank) {
  auto text = store.try_get(key_of(group, rank));
  return text ? std::optional(Statement::read(*text)) : std::nullopt;
}

}  // namespace lockstep::diagnose
