#include "comm/engines/local/world.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/text.h"
#include "comm/call/all_ranks.h"
#include "comm/engines/local/perform.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::local {

using diagnose::FailureKind;

World::World(int size, GroupNames names) : size_(size), names_(std::move(names)), members_(size) {}

void World::post(int rank, const Call& call) {
  Lock lock(mutex_);
  failure_.refuse_if_any(name_of(call.collective), names_.name());
  auto& pending = pending_[call.id];
  auto& posted = pending.emplace(rank, PostedCall(call)).first->second;
  members_[rank].last_call = posted.record();
  check_agreement(pending, rank);
  if (!failure_) check_presence(call.id, pending);
  if (!failure_ && pending.size() == participants(call.id).size()) complete(rank, call.id, pending);
}

void World::wait(int rank, CallId id) {
  Lock lock(mutex_);
  if (!pending_.contains(id)) return;
  failure_.rethrow_if_any();
  auto timeout = pending_.at(id).at(rank).timeout;
  auto deadline = Deadline::after(timeout);
  while (pending_.contains(id)) {
    failure_.rethrow_if_any();
    if (deadline.passed()) {
      const auto& pending = pending_.at(id);
      std::vector<diagnose::PeerStatus> peers;
      for (int one : participants(id)) peers.push_back(status_of(one, id, pending));
      fail(FailureKind::timeout,
           diagnose::overdue_sentence(pending.begin()->second, peers, timeout, names_));
      continue;
    }
    changed_.wait_for(lock.native(), std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
}

bool World::done(CallId id) {
  Lock lock(mutex_);
  return failure_ || !pending_.contains(id);
}

void World::abort(int rank, std::string_view reason) {
  Lock lock(mutex_);
  if (!failure_) fail(FailureKind::aborted, diagnose::aborted_sentence(rank, reason, names_));
}

std::vector<int> World::participants(CallId id) const {
  if (!id.channel.is_collective()) return {id.channel.source, id.channel.destination};
  return all_ranks(size_);
}

void World::check_agreement(const PendingOperation& pending, int rank) {
  const auto& mine = pending.at(rank);
  for (const auto& [other, call] : pending) {
    if (other == rank) continue;
    bool agree = same_call(mine, call);
    if (agree && mine.collective == Collective::all_to_all) {
      agree = counts_agree(mine, rank, call, other) && counts_agree(call, other, mine, rank);
    }
    if (agree) continue;
    return fail(FailureKind::mismatch,
                diagnose::mismatch_sentence(mine, rank, call.record(), other, names_));
  }
}

void World::check_presence(CallId id, const PendingOperation& pending) {
  for (int rank : participants(id)) {
    if (!members_[rank].left || pending.contains(rank)) continue;
    diagnose::LostRank lost{.rank = rank,
                            .size = size_,
                            .by_exception = members_[rank].by_exception,
                            .status = status_of(rank, id, pending),
                            .call = pending.begin()->second};
    for (const auto& [waiting, call] : pending) lost.waiting.push_back(waiting);
    return fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, names_));
  }
}

void World::complete(int rank, CallId id, PendingOperation& pending) {
  try {
    if (!id.channel.is_collective()) {
      perform(pending.at(id.channel.source), pending.at(id.channel.destination));
    } else {
      std::vector<PostedCall> calls;
      for (auto& [poster, call] : pending) calls.push_back(call);
      perform(calls);
    }
  } catch (const std::exception& error) {
    return fail(FailureKind::aborted,
                diagnose::execution_sentence(rank, pending.at(rank), error.what(), names_));
  }
  pending_.erase(id);
  changed_.notify_all();
}

void World::fail(FailureKind kind, const std::string& text) {
  failure_.set(diagnose::error_of(kind, text));
  for (auto& [id, pending] : pending_) pending.clear();
  changed_.notify_all();
}

diagnose::PeerStatus World::status_of(int rank, CallId id, const PendingOperation& pending) const {
  const auto& last = members_[rank].last_call;
  return {
      .rank = rank,
      .has_called = pending.contains(rank),
      .last = last,
      .last_is_of_channel = last && channel_of(last->collective, last->root, rank) == id.channel};
}

// How ranks come and go.

std::shared_ptr<World> World::child(int rank, std::span<const int> ranks, std::string_view name) {
  Lock lock(mutex_);
  auto entry = children_.find(name);
  if (entry == children_.end()) {
    Child fresh{std::make_shared<World>(static_cast<int>(ranks.size()),
                                        names_.part(ranks, std::string(name))),
                {ranks.begin(), ranks.end()},
                std::vector<bool>(ranks.size())};
    entry = children_.emplace(std::string(name), std::move(fresh)).first;
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      if (!members_[ranks[place]].left) continue;
      entry->second.taken[place] = true;
      entry->second.world->leave(static_cast<int>(place), members_[ranks[place]].by_exception);
    }
  }
  auto& child = entry->second;
  child.taken[std::ranges::find(child.ranks, rank) - child.ranks.begin()] = true;
  auto world = child.world;
  if (std::ranges::all_of(child.taken, [](bool taken) { return taken; })) children_.erase(entry);
  return world;
}

at::Tensor World::node_shared(int rank, const std::function<at::Tensor()>& make) {
  Lock lock(mutex_);
  auto number = ++members_[rank].node_shared;
  auto& shared = node_shared_[number];
  if (!shared.tensor.defined()) shared.tensor = make();
  auto mine = shared.tensor.detach();
  if (shared.tensor.requires_grad()) mine.requires_grad_();
  if (++shared.taken == size_) node_shared_.erase(number);
  return mine;
}

void World::leave(int rank, bool by_exception) {
  Lock lock(mutex_);
  members_[rank].left = true;
  members_[rank].by_exception = by_exception;
  for (auto& [name, child] : children_) {
    auto place = std::ranges::find(child.ranks, rank) - child.ranks.begin();
    if (place == std::ssize(child.ranks) || child.taken[place]) continue;
    child.taken[place] = true;
    child.world->leave(static_cast<int>(place), by_exception);
  }
  for (auto entry = pending_.begin(); !failure_ && entry != pending_.end(); ++entry) {
    auto id = entry->first;
    auto [source, destination] = id.channel;
    if (!id.channel.is_collective() && source != rank && destination != rank) continue;
    check_presence(id, entry->second);
    if (failure_) break;
  }
}

}  // namespace lockstep::local
