#include "comm/engines/local/world.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

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
  auto& meeting = meetings_[key];
  auto& posted = meeting.calls.emplace(rank, PostedCall(call)).first->second;
  meeting.tickets.emplace(rank, ticket);
  member.last_call = posted.record();
  check_agreement(meeting, rank);
  if (!failure_) check_presence(key, meeting);
  if (!failure_ && meeting.calls.size() == participants(key).size()) complete(key, meeting);
  return ticket;
}

void World::wait(int rank, std::uint64_t ticket) {
  Lock lock(mutex_);
  auto& open = members_[rank].open;
  auto entry = open.find(ticket);
  if (entry == open.end()) return;
  failure_.rethrow_if_any();
  auto key = entry->second;
  auto timeout = meetings_.at(key).calls.at(rank).timeout;
  auto deadline = Deadline::after(timeout);
  while (open.contains(ticket)) {
    failure_.rethrow_if_any();
    if (deadline.passed()) {
      const auto& meeting = meetings_.at(key);
      std::vector<diagnose::PeerStatus> peers;
      for (int one : participants(key)) peers.push_back(status_of(one, key, meeting));
      fail(FailureKind::timeout,
           diagnose::overdue_sentence(meeting.calls.begin()->second, peers, timeout, name_));
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

void World::check_agreement(const Meeting& meeting, int rank) {
  const auto& mine = meeting.calls.at(rank);
  for (const auto& [other, call] : meeting.calls) {
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

void World::check_presence(const Key& key, const Meeting& meeting) {
  for (int rank : participants(key)) {
    if (!members_[rank].left || meeting.calls.contains(rank)) continue;
    diagnose::LostRank lost{.rank = rank,
                            .size = size_,
                            .status = status_of(rank, key, meeting),
                            .call = meeting.calls.begin()->second};
    for (const auto& [waiting, call] : meeting.calls) lost.waiting.push_back(waiting);
    return fail(FailureKind::peer_lost, diagnose::lost_sentence(lost, name_));
  }
}

void World::complete(const Key& key, Meeting& meeting) {
  try {
    if (!key.channel.is_collective()) {
      perform(meeting.calls.at(key.channel.source), meeting.calls.at(key.channel.destination));
    } else {
      std::vector<PostedCall> calls;
      for (auto& [rank, call] : meeting.calls) calls.push_back(call);
      perform(calls);
    }
  } catch (const std::exception& error) {
    return fail(FailureKind::aborted,
                formatted("{} failed: {}{}", describe(meeting.calls.begin()->second), error.what(),
                          diagnose::words_of_group(name_)));
  }
  for (auto [rank, ticket] : meeting.tickets) members_[rank].open.erase(ticket);
  meetings_.erase(key);
  changed_.notify_all();
}

void World::fail(FailureKind kind, const std::string& text) {
  failure_.set(diagnose::error_of(kind, text));
  meetings_.clear();
  changed_.notify_all();
}

diagnose::PeerStatus World::status_of(int rank, const Key& key, const Meeting& meeting) const {
  const auto& last = members_[rank].last_call;
  return {
      .rank = rank,
      .has_called = meeting.calls.contains(rank),
      .last = last,
      .last_is_of_channel = last && channel_of(last->collective, last->root, rank) == key.channel};
}

}  // namespace lockstep::local
