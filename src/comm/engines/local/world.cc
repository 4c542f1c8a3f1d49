#include "comm/engines/local/world.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "comm/diagnose/last_call.h"
#include "comm/engines/local/perform.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace lockstep::local {

World::World(int size, std::string name) : size_(size), name_(std::move(name)), members_(size) {}

std::uint64_t World::post(int rank, const Call& call) {
  std::lock_guard lock(mutex_);
  failure_.refuse_if_any(name_of(call.collective), name_);
  auto& member = members_[rank];
  auto key = next_key(rank, call);
  auto ticket = ++member.last_ticket;
  member.open.emplace(ticket, key);
  auto& meeting = meetings_[key];
  auto& posted = meeting.calls.emplace(rank, PostedCall(call, key.number)).first->second;
  meeting.tickets.emplace(rank, ticket);
  member.last_call = posted.without_tensors();
  check_agreement(meeting, rank);
  if (!failure_) check_presence(key, meeting);
  if (!failure_ && meeting.calls.size() == participants(key).size()) complete(key, meeting);
  return ticket;
}

void World::wait(int rank, std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
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
      fail(std::make_exception_ptr(Timeout(timeout_text(key, timeout))));
      continue;
    }
    changed_.wait_for(lock, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
}

bool World::done(int rank, std::uint64_t ticket) {
  std::lock_guard lock(mutex_);
  return failure_ || !members_[rank].open.contains(ticket);
}

void World::abort(int rank, std::string_view reason) {
  std::lock_guard lock(mutex_);
  if (failure_) return;
  fail(std::make_exception_ptr(
      Aborted(formatted("group {}: rank {} ended the group: {}", name_, rank, reason))));
}

World::Key World::next_key(int rank, const Call& call) {
  auto& member = members_[rank];
  switch (call.collective) {
    case Collective::send:
      return {rank, call.root, ++member.messages[{rank, call.root}]};
    case Collective::recv:
      return {call.root, rank, ++member.messages[{call.root, rank}]};
    default:
      return {-1, -1, ++member.collectives};
  }
}

std::vector<int> World::participants(const Key& key) const {
  if (key.source >= 0) return {key.source, key.destination};
  std::vector<int> all(size_);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void World::check_agreement(const Meeting& meeting, int rank) {
  const auto& mine = meeting.calls.at(rank);
  for (const auto& [other, call] : meeting.calls) {
    if (other == rank) continue;
    bool agree = same_call(mine, call);
    if (agree && mine.collective == Collective::all_to_all) {
      agree = counts_agree(mine, rank, call, other, size_) &&
              counts_agree(call, other, mine, rank, size_);
    }
    if (agree) continue;
    fail(std::make_exception_ptr(Mismatch(
        formatted("group {}: ranks {} and {} made different calls: rank {} {}; rank {} {}", name_,
                  other, rank, other, describe_fully(call), rank, describe_fully(mine)))));
    return;
  }
}

void World::check_presence(const Key& key, const Meeting& meeting) {
  for (int rank : participants(key)) {
    if (!members_[rank].left || meeting.calls.contains(rank)) continue;
    const auto& [waiting, call] = *meeting.calls.begin();
    fail(std::make_exception_ptr(
        PeerLost(formatted("group {}: rank {} left before {}, which rank {} waits in; {}", name_,
                           rank, describe(call), waiting, last_calls({rank})))));
    return;
  }
}

void World::complete(const Key& key, Meeting& meeting) {
  try {
    if (key.source >= 0) {
      perform(meeting.calls.at(key.source), meeting.calls.at(key.destination));
    } else {
      std::vector<PostedCall> calls;
      for (auto& [rank, call] : meeting.calls) calls.push_back(call);
      perform(calls);
    }
  } catch (const std::exception& error) {
    fail(std::make_exception_ptr(Aborted(formatted(
        "group {}: {} failed: {}", name_, describe(meeting.calls.begin()->second), error.what()))));
    return;
  }
  for (auto [rank, ticket] : meeting.tickets) members_[rank].open.erase(ticket);
  meetings_.erase(key);
  changed_.notify_all();
}

void World::fail(std::exception_ptr error) {
  failure_.set(std::move(error));
  meetings_.clear();
  changed_.notify_all();
}

std::string World::last_calls(const std::vector<int>& ranks) const {
  return words_of_last_calls(ranks, [this](int rank) {
    const auto& last = members_[rank].last_call;
    return last ? describe_fully(*last) : std::string();
  });
}

std::string World::timeout_text(const Key& key, Duration waited) const {
  const auto& meeting = meetings_.at(key);
  std::vector<int> missing;
  std::vector<int> waiting;
  for (int rank : participants(key))
    (meeting.calls.contains(rank) ? waiting : missing).push_back(rank);
  const auto& call = meeting.calls.begin()->second;
  auto verb = waiting.size() == 1 ? "waits" : "wait";
  auto due = call.is_message() ? formatted("answered {}", describe(call))
                               : formatted("called {}", describe(call));
  return formatted("group {}: after {} {} never {} that {} {} in; {}", name_,
                   format_duration(waited), rank_list(missing), due, rank_list(waiting), verb,
                   last_calls(missing));
}

}  // namespace lockstep::local
