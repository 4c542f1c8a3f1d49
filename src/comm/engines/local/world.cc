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

World::World(int size, std::string name) : size_(size), name_(std::move(name)), members_(size) {}

std::uint64_t World::post(int rank, const Call& call) {
  Lock lock(mutex_);
  failure_.refuse_if_any(name_of(call.collective), name_);
  auto& member = members_[rank];
  Key key{channel_of(call.collective, call.root, rank), call.number};
  auto ticket = ++member.last_ticket;
  member.open.emplace(ticket, key);
  auto& pending = pending_[key];
  auto& posted = pending.calls.emplace(rank, PostedCall(call)).first->second;
  pending.tickets.emplace(rank, ticket);
  member.last_call = posted.record();
  check_agreement(pending, rank);
  if (!failure_) check_presence(key, pending);
  if (!failure_ && pending.calls.size() == participants(key).size()) complete(key, pending);
  return ticket;
}

void World::wait(int rank, std::uint64_t ticket) {
  Lock lock(mutex_);
  auto& open = members_[rank].open;
  auto entry = open.find(ticket);
  if (entry == open.end()) return;
  failure_.rethrow_if_any();
  auto key = entry->second;
  auto timeout = pending_.at(key).calls.at(rank).timeout;
  auto deadline = Deadline::after(timeout);
  while (open.contains(ticket)) {
    failure_.rethrow_if_any();
    if (deadline.passed()) {
      const auto& pending = pending_.at(key);
      std::vector<diagnose::PeerStatus> peers;
      for (int one : participants(key)) peers.push_back(status_of(one, key, pending));
      fail(FailureKind::timeout,
           diagnose::overdue_sentence(pending.calls.begin()->second, peers, timeout, name_));
      continue;
    }
    changed_.wait_for(lock.native(), std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
}

bool World::done(int rank, std::uint64_t ticket) {
  Lock lock(mutex_);
  return failure_ || !members_[rank].open.contains(ticket);
}

void World::abort(int rank, std::string_view reason) {
  Lock lock(mutex_);
  if (!failure_) fail(FailureKind::aborted, diagnose::aborted_sentence(rank, reason, name_));
}

std::vector<int> World::participants(const Key& key) const {
  if (!key.channel.is_collective()) return {key.channel.source, key.channel.destination};
  return all_ranks(size_);
}

void World::check_agreement(const PendingOperation& pending, int rank) {
  const auto& mine = pending.calls.at(rank);
  for (const auto& [other, call] : pending.calls) {
    if (other == rank) continue;
    bool agree = same_call(mine, call);
    if (agree && mine.collective == Collective::all_to_all) {
      agree = counts_agree(mine, rank, call, other) && counts_agree(call, other, mine, rank);
    }
    if (agree) continue;
    return fail(FailureKind::mismatch,
                describe_difference(mine, rank, call, other) + diagnose::words_of_group(name_));
  }
}

void World::check_presence(const Key& key, const PendingOperation& pending) {
  for (int rank : participants(key)) {
    if (!members_[rank].left || pending.calls.contains(rank)) continue;
    diagnose::LostRank lost{.rank = rank,
                            .size = size_,
                            .status = status_of(rank, key, pending),
                            .call = pending.calls.begin()->second};
    for (const auto& [waiting, call] : pending.calls) lost.waiting.push_back(waiting);
    return fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, name_));
  }
}

void World::complete(const Key& key, PendingOperation& pending) {
  try {
    if (!key.channel.is_collective()) {
      perform(pending.calls.at(key.channel.source), pending.calls.at(key.channel.destination));
    } else {
      std::vector<PostedCall> calls;
      for (auto& [rank, call] : pending.calls) calls.push_back(call);
      perform(calls);
    }
  } catch (const std::exception& error) {
    return fail(FailureKind::aborted,
                formatted("{} failed: {}{}", describe(pending.calls.begin()->second), error.what(),
                          diagnose::words_of_group(name_)));
  }
  for (auto [rank, ticket] : pending.tickets) members_[rank].open.erase(ticket);
  pending_.erase(key);
  changed_.notify_all();
}

void World::fail(FailureKind kind, const std::string& text) {
  failure_.set(diagnose::error_of(kind, text));
  pending_.clear();
  changed_.notify_all();
}

diagnose::PeerStatus World::status_of(int rank, const Key& key,
                                      const PendingOperation& pending) const {
  const auto& last = members_[rank].last_call;
  return {
      .rank = rank,
      .has_called = pending.calls.contains(rank),
      .last = last,
      .last_is_of_channel = last && channel_of(last->collective, last->root, rank) == key.channel};
}

}  // namespace lockstep::local
