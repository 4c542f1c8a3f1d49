// What a member does with what the others write, and how it learns why a call does not go on.
#include "base/format.h"
#include "base/log.h"
#include "base/visible.h"
#include "comm/engines/mpi/member.h"

#include "comm/diagnose/report.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::mpi {

using diagnose::FailureKind;

namespace {

// How long the others have for their answers: their progress thread may have a sum to finish.
constexpr auto answer_time = std::chrono::milliseconds(500);

// How a question names a channel: as seen by the rank that asks.
constexpr std::uint32_t about_collectives = 0;
constexpr std::uint32_t about_messages_from_asker = 1;
constexpr std::uint32_t about_messages_to_asker = 2;

std::string_view text_of(const Arrival& arrival) {
  return {reinterpret_cast<const char*>(arrival.content.data()), arrival.content.size()};
}

}  // namespace

void Member::arrived(Arrival arrival) {
  int from = rank_of(arrival.from);
  if (from == size_) return progress_.discard(arrival);
  if (arrival.header.kind == Kind::question) return answer(from, arrival.header);
  if (dead_) return progress_.discard(arrival);
  switch (arrival.header.kind) {
    case Kind::part:
    case Kind::message:
    case Kind::acknowledgement:
    case Kind::call:
      return accept(from, std::move(arrival));
    case Kind::failed:
      return die(diagnose::FailureReport::read(text_of(arrival)), false);
    case Kind::left:
      return gone(from, {.has_left = true,
                         .how = {},
                         .last = read_call(text_of(arrival)),
                         .by_exception = arrival.header.round != 0});
    case Kind::answer:
      return take_answer(from, arrival);
    case Kind::question:
    case Kind::goodbye:
      return;
  }
}

void Member::accept(int from, Arrival arrival) {
  const auto& header = arrival.header;
  if (header.kind != Kind::acknowledgement && !agrees(from, header))
    return progress_.discard(arrival);
  Key key{from, header.kind, header.number, header.round};
  auto awaited = awaited_.extract(key);
  if (awaited.empty()) {
    unexpected_.emplace(key, std::move(arrival));
  } else {
    take(arrival, awaited.mapped());
  }
}

bool Member::agrees(int from, const Header& header) {
  ChannelKey channel = header.kind == Kind::message ? ChannelKey{from, rank_} : ChannelKey();
  std::optional<diagnose::KnownCall> other;  // where it is not the peer's
  const bool is_early = calls_.with_history([&](const diagnose::CallHistory& history) {
    const auto* known = history.find(channel, header.number);
    if (known != nullptr && known->fingerprint != header.fingerprint) other = *known;
    return header.number > history.last_number(channel);
  });
  if (is_early) claims_[{channel, header.number}].push_back({from, header.fingerprint});
  if (!other) return true;
  ask({.cause = CallQuery::Cause::difference,
       .call = other->call,
       .fingerprint = other->fingerprint,
       .rank = rank_,
       .asked = {from}});
  return false;
}

void Member::ask(CallQuery query) {
  if (query_ && query_->cause != CallQuery::Cause::notice) return;
  const auto& call = query.call;
  auto about = call.collective == Collective::send   ? about_messages_from_asker
               : call.collective == Collective::recv ? about_messages_to_asker
                                                     : about_collectives;
  for (int rank : query.asked)
    post_to(rank, Kind::question, call.number, query.fingerprint, {}, about);
  query_ = std::move(query);
  query_end_ = Clock::now() + answer_time;
}

void Member::answer(int from, const Header& header) {
  ChannelKey channel = header.round == about_messages_from_asker ? ChannelKey{from, rank_}
                       : header.round == about_messages_to_asker ? ChannelKey{rank_, from}
                                                                 : ChannelKey();
  const auto answer = calls_.with_history([&](const diagnose::CallHistory& history) {
    const auto* known = history.find(channel, header.number);
    Answer result{.fingerprint = known != nullptr ? known->fingerprint : 0,
                  .last = history.last_number(channel)};
    result.has_called = result.last >= header.number;
    const auto* told = result.has_called ? known : history.last_call(channel);
    if (told != nullptr) result.call = told->call;
    return result;
  });
  post_to(from, Kind::answer, header.number, answer.fingerprint, written(answer, eager_limit));
}

void Member::take_answer(int from, const Arrival& arrival) {
  if (!query_ || !query_->asked.contains(from) || arrival.header.number != query_->call.number)
    return;
  query_->answers.insert_or_assign(from, read_answer(arrival.header.fingerprint, text_of(arrival)));
  if (query_->is_complete()) conclude();
}

void Member::check_progress() {
  if (query_ && Clock::now() > query_end_) conclude();
}

void Member::conclude() {
  auto query = *std::exchange(query_, std::nullopt);
  for (int rank : query.asked) {
    if (query.answers.contains(rank)) continue;
    if (auto process = progress_.stopped_process(world_ranks_[rank]))
      query.stopped.emplace(rank, *process);
  }
  auto report = query.report(group_);
  if (query.cause != CallQuery::Cause::notice || report.kind != FailureKind::timeout)
    return die(report, true);
  log::warning("{}", report.text);
}

Member::Pointer Member::waiting(CallId id) const {
  if (auto message = messages_.find(id); message != messages_.end()) return message->second;
  for (const auto& operation : queue_) {
    // The first is what holds up the others.
    if (operation->call().id == id) return queue_.front();
  }
  return nullptr;
}

void Member::overdue(CallId id, CallQuery::Cause cause, Duration waited) {
  auto operation = waiting(id);
  if (dead_ || !operation) return;
  CallQuery query{.cause = cause,
                  .call = operation->call(),
                  .fingerprint = operation->fingerprint(),
                  .rank = rank_,
                  .waited = waited};
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && (!is_message(query.call.collective) || rank == query.call.root))
      query.asked.insert(rank);
  }
  ask(std::move(query));
}

void Member::lost(int from, const std::string& how) {
  if (dead_) return;
  if (from < 0) return die({FailureKind::aborted, how + group_.ending()}, false);
  int rank = rank_of(from);
  if (rank == size_) return;
  // What it had begun to send may never end.
  for (const auto& [id, operation] : messages_) {
    if (operation->call().root == rank) return miss(*operation, rank, {.how = how});
  }
  gone(rank, {.how = how});
}

void Member::gone(int rank, const Absence& absence) {
  gone_.insert_or_assign(rank, absence);
  for (const auto& [key, awaited] : awaited_) {
    if (key.from == rank) return miss(*awaited.operation, rank, absence);
  }
  if (!queue_.empty()) check_gone(*queue_.front());
}

// A rank that has gone is missed by the calls that it did not make.
void Member::check_gone(const Operation& operation) {
  for (const auto& [rank, absence] : gone_) {
    if (!is_message(operation.call().collective) && operation.call().number > absence.calls())
      return miss(operation, rank, absence);
  }
}

void Member::miss(const Operation& operation, int rank, const Absence& absence) {
  diagnose::LostRank lost{
      .rank = rank, .size = size_, .call = operation.call().record(), .waiting = {rank_}};
  lost.by_exception = absence.by_exception;
  if (absence.has_left)
    lost.status = diagnose::PeerStatus{.rank = rank, .last = absence.last};
  else
    lost.how = absence.how;
  die({FailureKind::peer_lost, diagnose::lost_sentence(lost, group_)}, true);
}

void Member::die(const diagnose::FailureReport& report, bool tell) {
  if (dead_) return;
  dead_ = true;
  progress_.expect(-static_cast<int>(queue_.size() + messages_.size()));
  for (int rank = 0; rank < size_ && tell; ++rank) {
    if (rank != rank_) post_to(rank, Kind::failed, 0, 0, shortened(report.written(), eager_limit));
  }
  for (const auto& [key, arrival] : unexpected_) progress_.discard(arrival);
  unexpected_.clear();
  awaited_.clear();
  queue_.clear();
  messages_.clear();
  claims_.clear();
  query_.reset();
  if (report.kind == FailureKind::peer_lost || report.kind == FailureKind::timeout)
    progress_.note_failure();
  calls_.fail(report.error());
}

}  // namespace lockstep::mpi
