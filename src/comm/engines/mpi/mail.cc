// What a member does with what the others write, and how it learns why a call does not go on.
#include "comm/engines/mpi/member.h"

#include <lockstep/base/format.h>
#include <lockstep/base/log.h>

#include "comm/diagnose/call_watch.h"
#include "comm/diagnose/last_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::mpi {
namespace {

// How long the others have for their answers: their office's thread may have a sum to finish.
constexpr auto hearing = std::chrono::milliseconds(500);

// How a question names a route: as seen by the rank that asks.
constexpr std::uint32_t about_collectives = 0;
constexpr std::uint32_t about_messages_from_asker = 1;
constexpr std::uint32_t about_messages_to_asker = 2;

std::string_view text_of(const Arrival& arrival) {
  return {reinterpret_cast<const char*>(arrival.content.data()), arrival.content.size()};
}

}  // namespace

const Member::Known* Member::History::find(std::uint64_t number) const {
  if (number > last || last - number >= calls.size()) return nullptr;
  return &calls[calls.size() - 1 - (last - number)];
}

void Member::arrived(Arrival arrival) {
  int from = rank_of(arrival.from);
  if (from == size_) return office_.discard(arrival);
  if (arrival.header.kind == Kind::question) return answer(from, arrival.header);
  if (dead_) return office_.discard(arrival);
  switch (arrival.header.kind) {
    case Kind::part:
    case Kind::message:
    case Kind::received:
    case Kind::call:
      return mail(from, std::move(arrival));
    case Kind::failed: {
      auto text = text_of(arrival);
      return die({text.empty() ? 'A' : text.front(), std::string(text.substr(!text.empty()))},
                 false);
    }
    case Kind::left:
      return gone(from, {true, std::string(text_of(arrival)), arrival.header.number});
    case Kind::answer:
      return hear(from, arrival);
    case Kind::question:
    case Kind::goodbye:
      return;
  }
}

void Member::mail(int from, Arrival arrival) {
  const auto& header = arrival.header;
  if (header.kind != Kind::received && !agrees(from, header)) return office_.discard(arrival);
  Key key{from, header.kind, header.number, header.round};
  auto awaited = awaited_.extract(key);
  if (awaited.empty()) {
    mail_.emplace(key, std::move(arrival));
  } else {
    take(arrival, awaited.mapped());
  }
}

bool Member::agrees(int from, const Header& header) {
  Route route = header.kind == Kind::message ? Route{from, rank_} : collectives;
  auto& history = histories_[route];
  if (header.number > history.last) {
    claims_[{route, header.number}].push_back({from, header.fingerprint});
    return true;
  }
  const auto* known = history.find(header.number);
  if (known == nullptr || known->fingerprint == header.fingerprint) return true;
  inquire({.cause = Inquest::Cause::difference,
           .call = known->call,
           .fingerprint = known->fingerprint,
           .rank = rank_,
           .waited = {},
           .asked = {from},
           .answers = {}});
  return false;
}

void Member::inquire(Inquest inquest) {
  if (inquest_ && inquest_->cause != Inquest::Cause::notice) return;
  const auto& call = inquest.call;
  auto about = call.collective == Collective::send   ? about_messages_from_asker
               : call.collective == Collective::recv ? about_messages_to_asker
                                                     : about_collectives;
  for (int rank : inquest.asked)
    post_to(rank, Kind::question, call.number, inquest.fingerprint, {}, about);
  inquest_ = std::move(inquest);
  inquest_end_ = Clock::now() + hearing;
}

// Of this route; where there is none, of any.
std::string Member::last_call(const History& history) const {
  const auto* last = &history;
  for (const auto& [route, other] : histories_)
    if (last->calls.empty()) last = &other;
  return last->calls.empty() ? "" : describe_fully(last->calls.back().call);
}

void Member::answer(int from, const Header& header) {
  Route route = header.round == about_messages_from_asker ? Route{from, rank_}
                : header.round == about_messages_to_asker ? Route{rank_, from}
                                                          : collectives;
  const auto& history = histories_[route];
  const auto* known = history.find(header.number);
  Answer answer{.last = history.last, .text = {}};
  if (history.last >= header.number) answer.state = Answer::State::posted;
  if (known == nullptr && answer.state == Answer::State::not_posted)
    answer.text = last_call(history);
  if (known != nullptr) answer.text = describe_fully(known->call);
  post_to(from, Kind::answer, header.number, known != nullptr ? known->fingerprint : 0,
          written(answer));
}

void Member::hear(int from, const Arrival& arrival) {
  if (!inquest_ || !inquest_->asked.contains(from) ||
      arrival.header.number != inquest_->call.number)
    return;
  inquest_->answers.insert_or_assign(from,
                                     read_answer(arrival.header.fingerprint, text_of(arrival)));
  if (inquest_->is_complete()) conclude();
}

void Member::tick() {
  if (inquest_ && Clock::now() > inquest_end_) conclude();
}

void Member::conclude() {
  auto inquest = *std::exchange(inquest_, std::nullopt);
  for (int rank : inquest.asked) {
    if (inquest.answers.contains(rank)) continue;
    if (auto process = office_.stopped_process(places_[rank]))
      inquest.stopped.emplace(rank, *process);
  }
  auto verdict = judge(inquest, group_);
  if (inquest.cause != Inquest::Cause::notice || verdict.kind != 'T') return die(verdict, true);
  log::warning("{}", verdict.text);
}

Member::Pointer Member::waiting(std::uint64_t ticket) const {
  if (auto message = messages_.find(ticket); message != messages_.end()) return message->second;
  for (const auto& operation : queue_) {
    // The first is what holds up the others.
    if (operation->ticket() == ticket) return queue_.front();
  }
  return nullptr;
}

void Member::overdue(std::uint64_t ticket, Inquest::Cause cause, Duration waited) {
  auto operation = waiting(ticket);
  if (dead_ || !operation) return;
  Inquest inquest{.cause = cause,
                  .call = operation->call().without_tensors(),
                  .fingerprint = operation->fingerprint(),
                  .rank = rank_,
                  .waited = waited,
                  .asked = {},
                  .answers = {}};
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && (!inquest.call.is_message() || rank == inquest.call.root))
      inquest.asked.insert(rank);
  }
  inquire(std::move(inquest));
}

void Member::lost(int from, const std::string& how) {
  if (dead_) return;
  if (from < 0) return die({'A', how + watch::words_of_group(group_)}, false);
  int rank = rank_of(from);
  if (rank == size_) return;
  // What it had begun to send may never end.
  for (const auto& [ticket, operation] : messages_) {
    if (operation->call().root == rank) return miss(*operation, rank, {false, how, 0});
  }
  gone(rank, {false, how, 0});
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
    if (!operation.call().is_message() && operation.call().number > absence.calls)
      return miss(operation, rank, absence);
  }
}

void Member::miss(const Operation& operation, int rank, const Absence& absence) {
  auto call = describe(operation.call());
  auto text =
      absence.in_order
          ? formatted("it left in order without taking part in {} that rank {} waits in; {}", call,
                      rank_, words_of_last_call(absence.what))
          : formatted("{}; rank {} waits in {}", absence.what, rank_, call);
  die({'P',
       formatted("rank {} of {} was lost: {}{}", rank, size_, text, watch::words_of_group(group_))},
      true);
}

void Member::die(const Verdict& verdict, bool tell) {
  if (dead_) return;
  dead_ = true;
  office_.expect(-static_cast<int>(queue_.size() + messages_.size()));
  for (int rank = 0; rank < size_ && tell; ++rank) {
    if (rank != rank_) post_to(rank, Kind::failed, 0, 0, verdict.kind + verdict.text);
  }
  for (const auto& [key, arrival] : mail_) office_.discard(arrival);
  mail_.clear();
  awaited_.clear();
  queue_.clear();
  messages_.clear();
  claims_.clear();
  inquest_.reset();
  if (verdict.kind == 'P' || verdict.kind == 'T') office_.note_failure();
  {
    std::lock_guard lock(mutex_);
    failure_.set(verdict.error());
  }
  changed_.notify_all();
}

}  // namespace lockstep::mpi
