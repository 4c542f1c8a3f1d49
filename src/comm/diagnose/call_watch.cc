#include "comm/diagnose/call_watch.h"

#include <lockstep/base/format.h>
#include <lockstep/base/log.h>

#include "sys/process_identity.h"
#include "sys/run_with_timeout.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <utility>

namespace lockstep::watch {
namespace {

std::string key_of(std::string_view group, int rank) {
  return formatted("lockstep/calls/{}/{}", group, rank);
}

}  // namespace

std::string key_of_end(std::string_view group, std::string_view name) {
  return formatted("lockstep/end/{}/{}", group, name);
}

std::string words_of_group(std::string_view group) {
  return group == "world" ? std::string() : formatted(" [group {}]", group);
}

std::string mismatch_sentence(const Difference& difference, std::string_view group, int rank,
                              int other) {
  if (difference.mine.empty()) {
    return formatted(
        "ranks {} and {} made different calls at or before #{}, further back than they keep{}",
        std::min(rank, other), std::max(rank, other), difference.number, words_of_group(group));
  }
  auto mine = formatted("rank {} called {}", rank, difference.mine);
  auto theirs = formatted("rank {} called {}", other, difference.theirs);
  return formatted("{} where {}{}", rank < other ? mine : theirs, rank < other ? theirs : mine,
                   words_of_group(group));
}

class WatchCore {
 public:
  explicit WatchCore(std::shared_ptr<Store> store)
      : store_(std::move(store)), process_(sys::process_identity()) {}

  [[nodiscard]] const std::shared_ptr<Store>& store() const { return store_; }
  [[nodiscard]] const std::string& process() const { return process_; }

  void add(std::shared_ptr<Member> member) {
    std::lock_guard lock(mutex_);
    members_.push_back(std::move(member));
  }
  void remove(const std::shared_ptr<Member>& member) {
    std::lock_guard lock(mutex_);
    std::erase(members_, member);
  }
  void something_was_posted();
  // The thread's life.
  void run();
  // Asks the thread to end; whether it has.
  [[nodiscard]] bool end(Duration limit);

 private:
  // Whether something may be found here without another post.
  [[nodiscard]] bool look(Member& member);
  void ask_for_end(Member& member);
  // Tells the member, unless it has left.
  static void tell(Member& member, const std::string& mismatch);
  void compare(Member& member, const std::vector<int>& partners);

  const std::shared_ptr<Store> store_;
  const std::string process_;
  std::atomic<bool> dirty_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Member>> members_;
  bool ending_ = false;
  bool has_ended_ = false;
};

// The watch's look() takes the same mutex: one that finds the call in the ledger finds it open,
// too, and one that does not has cleared dirty_ before something_was_posted() reads it.
void Member::note(const PostedCall& call) {
  open_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    ledger_.note(route_of(call.collective, call.root, rank_), call);
  }
  core_.something_was_posted();
}

void Member::state(Store& store, std::string_view process, bool leaves) {
  std::lock_guard in_order(stating_);
  std::string text;
  {
    std::lock_guard lock(mutex_);
    has_left_ = has_left_ || leaves;
    text = ledger_.statement(process, has_left_);
  }
  store.set(key_of(group_, rank_), text);
}

std::vector<int> Member::partners(const std::vector<Route>& routes) const {
  std::vector<int> result;
  for (auto route : routes) {
    if (route.is_collective()) {
      result.push_back((rank_ + 1) % size_);
      result.push_back((rank_ + size_ - 1) % size_);
    } else {
      result.push_back(route.from == rank_ ? route.to : route.from);
    }
  }
  std::ranges::sort(result);
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

void WatchCore::something_was_posted() {
  if (dirty_.load(std::memory_order_relaxed)) return;
  {
    std::lock_guard lock(mutex_);
    dirty_ = true;
  }
  changed_.notify_all();
}

void WatchCore::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || dirty_; });
    dirty_ = false;
    auto members = members_;
    lock.unlock();
    bool again = false;
    for (const auto& member : members) again = look(*member) || again;
    members.clear();
    lock.lock();
    changed_.wait_for(lock, CallWatch::period, [this] { return ending_; });
    if (again) dirty_ = true;
  }
  has_ended_ = true;
  changed_.notify_all();
}

bool WatchCore::end(Duration limit) {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, limit, [this] { return has_ended_; });
}

bool WatchCore::look(Member& member) {
  if (member.is_over_) return false;
  std::vector<int> partners;
  bool is_new = false;
  {
    std::lock_guard lock(member.mutex_);
    is_new = member.stated_ != member.ledger_.version();
    member.stated_ = member.ledger_.version();
    if (is_new) partners = member.partners(member.ledger_.routes());
  }
  const bool is_open = member.open_.load(std::memory_order_relaxed) > 0;
  try {
    if (!is_new && is_open) ask_for_end(member);
    if (!is_new) return is_open && !member.is_over_;
    // First said, then read: of two ranks that do this at once, at least one sees the other's.
    member.state(*store_, process_, false);
    compare(member, partners);
  } catch (const std::exception& error) {
    // Without the store nothing can be compared; what that means for the group, its engine says.
    member.is_over_ = true;
    log::debug("group {}: comparing calls: {}", member.group_, error.what());
  }
  return is_open && !member.is_over_;
}

void WatchCore::ask_for_end(Member& member) {
  if (!store_->try_get(key_of_end(member.group_, "verdict"))) return;
  member.is_over_ = true;
  tell(member, {});
}

void WatchCore::tell(Member& member, const std::string& mismatch) {
  std::lock_guard gate(member.gate_);
  if (!member.gone_) member.on_end_(mismatch);
}

void WatchCore::compare(Member& member, const std::vector<int>& partners) {
  for (int other : partners) {
    auto theirs = statement_of(*store_, member.group_, other);
    if (!theirs) continue;
    std::optional<Difference> difference;
    {
      std::lock_guard lock(member.mutex_);
      difference = member.ledger_.compare(*theirs);
    }
    if (!difference) continue;
    member.is_over_ = true;
    return tell(member, mismatch_sentence(*difference, member.group_, member.rank_, other));
  }
}

CallWatch::CallWatch(std::shared_ptr<Store> store, Duration patience)
    : patience_(patience),
      core_(std::make_shared<WatchCore>(std::move(store))),
      thread_("call watch", [core = core_] { core->run(); }) {}

CallWatch::~CallWatch() {
  if (core_->end(patience_)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::shared_ptr<Member> CallWatch::join(const std::string& group, int rank, int size,
                                        std::function<void(const std::string&)> on_end) {
  std::shared_ptr<Member> member(new Member(*core_, group, rank, size, std::move(on_end)));
  member->state(*core_->store(), core_->process(), false);
  core_->add(member);
  return member;
}

void CallWatch::leave(const std::shared_ptr<Member>& member, bool in_order) noexcept {
  {
    std::lock_guard gate(member->gate_);
    member->gone_ = true;
  }
  core_->remove(member);
  if (!in_order) return;
  static_cast<void>(sys::run_with_timeout(
      [core = core_, member] {
        try {
          member->state(*core->store(), core->process(), true);
        } catch (const std::exception& error) {
          // The store's server may have left before this rank; then nobody is there to be told.
          log::debug("group {}: leaving: {}", member->group_, error.what());
        }
      },
      patience_));
}

std::optional<Statement> statement_of(Store& store, std::string_view group, int rank) {
  auto text = store.try_get(key_of(group, rank));
  return text ? std::optional(Statement::read(*text)) : std::nullopt;
}

}  // namespace lockstep::watch
