#include "comm/watch/call_watch.h"

#include <lockstep/base/format.h>
#include <lockstep/base/log.h>

#include "comm/c10d/broken_pipes.h"
#include "comm/watch/process.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace lockstep::watch {
namespace {

std::string key_of(std::string_view group, int rank) {
  return formatted("lockstep/calls/{}/{}", group, rank);
}

}  // namespace

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

void Member::note(const PostedCall& call) {
  {
    std::lock_guard lock(mutex_);
    ledger_.note(route_of(call.collective, call.root, rank_), call);
  }
  watch_.something_was_posted();
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

CallWatch::CallWatch(std::shared_ptr<Store> store)
    : store_(std::move(store)), process_(own_process()), thread_([this] { run(); }) {}

CallWatch::~CallWatch() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Member> CallWatch::join(const std::string& group, int rank, int size,
                                        std::function<void(const std::string&)> on_mismatch) {
  std::shared_ptr<Member> member(new Member(*this, group, rank, size, std::move(on_mismatch)));
  store_->set(key_of(group, rank), member->ledger_.statement(process_, false));
  std::lock_guard lock(mutex_);
  members_.push_back(member);
  return member;
}

void CallWatch::leave(const std::shared_ptr<Member>& member, bool in_order) noexcept {
  std::lock_guard round(round_);
  {
    std::lock_guard lock(mutex_);
    std::erase(members_, member);
  }
  if (!in_order) return;
  const c10d_engine::BrokenPipesAreErrors quiet;
  try {
    std::string statement;
    {
      std::lock_guard lock(member->mutex_);
      statement = member->ledger_.statement(process_, true);
    }
    store_->set(key_of(member->group_, member->rank_), statement);
  } catch (const std::exception& error) {
    // The store's server may have left before this rank; then nobody is there to be told.
    log::debug("group {}: leaving: {}", member->group_, error.what());
  }
}

void CallWatch::something_was_posted() {
  if (dirty_.load(std::memory_order_relaxed)) return;
  {
    std::lock_guard lock(mutex_);
    dirty_ = true;
  }
  changed_.notify_all();
}

void CallWatch::run() {
  const c10d_engine::BrokenPipesAreErrors quiet;  // a c10d store's server may have gone
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || dirty_; });
    dirty_ = false;
    auto members = members_;
    lock.unlock();
    for (const auto& member : members) {
      std::lock_guard round(round_);
      look(*member);
    }
    lock.lock();
    changed_.wait_for(lock, period, [this] { return ending_; });
  }
}

void CallWatch::look(Member& member) {
  std::string statement;
  std::vector<int> partners;
  {
    std::lock_guard lock(member.mutex_);
    if (member.is_over_ || member.stated_ == member.ledger_.version()) return;
    member.stated_ = member.ledger_.version();
    statement = member.ledger_.statement(process_, false);
    partners = member.partners(member.ledger_.routes());
  }
  try {
    // First said, then read: of two ranks that do this at once, at least one sees the other's.
    store_->set(key_of(member.group_, member.rank_), statement);
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
      return member.on_mismatch_(
          mismatch_sentence(*difference, member.group_, member.rank_, other));
    }
  } catch (const std::exception& error) {
    // Without the store nothing can be compared; what that means for the group, its engine says.
    member.is_over_ = true;
    log::debug("group {}: comparing calls: {}", member.group_, error.what());
  }
}

std::optional<Statement> statement_of(Store& store, std::string_view group, int rank) {
  auto text = store.try_get(key_of(group, rank));
  return text ? std::optional(Statement::read(*text)) : std::nullopt;
}

}  // namespace lockstep::watch
