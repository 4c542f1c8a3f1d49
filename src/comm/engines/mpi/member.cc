#include "comm/engines/mpi/member.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "comm/diagnose/report.h"

#include <algorithm>
#include <utility>

namespace lockstep::mpi {

using diagnose::FailureKind;

namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

}  // namespace

Member::Member(ProgressThread& progress, GroupNames group, std::uint64_t id,
               std::vector<int> world_ranks, int rank)
    : progress_(progress),
      group_(std::move(group)),
      id_(id),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      size_(static_cast<int>(world_ranks_.size())),
      calls_(group_.name()) {}

void Member::join() {
  progress_.give([self = shared_from_this()] { self->progress_.attach(self->id_, self); });
}

void Member::post(const Call& call) {
  calls_.refuse_if_failed(call.collective);
  auto operation = std::make_shared<Operation>(call, rank_, size_);
  calls_.add(call.id.channel, operation->call(), operation->fingerprint());
  progress_.give([self = shared_from_this(), operation] { self->begin(operation); });
}

void Member::wait(CallId id) {
  auto ask_why = [this, id](CallQuery::Cause cause, Duration waited) {
    progress_.give(
        [self = shared_from_this(), id, cause, waited] { self->overdue(id, cause, waited); });
  };
  calls_.wait(
      id,
      {.on_deadline = [&](const auto& call) { ask_why(CallQuery::Cause::deadline, call.timeout); },
       .on_notice = [&](const auto&,
                        Duration waited) { ask_why(CallQuery::Cause::notice, waited); }});
}

void Member::abort(std::string_view reason) {
  auto text = diagnose::aborted_sentence(rank_, reason, group_);
  // At once: no later call of this rank gets through.
  calls_.fail(std::make_exception_ptr(Aborted(text)));
  progress_.give([self = shared_from_this(), text] {
    self->die({FailureKind::aborted, text}, true);
  });
}

void Member::leave(const rendezvous::GracePeriod& grace) {
  calls_.drain(grace);
  progress_.give([self = shared_from_this(), by_exception = grace.is_by_exception()] {
    // Of the collectives only: by its number the others see which of them miss this rank.
    auto text = self->calls_.with_history([](const diagnose::CallHistory& history) {
      const auto* last = history.find({}, history.last_number({}));
      return last != nullptr ? written(last->call, eager_limit) : std::string();
    });
    for (int rank = 0; rank < self->size_ && !self->dead_; ++rank) {
      if (rank != self->rank_) self->post_to(rank, Kind::left, 0, 0, text, by_exception ? 1 : 0);
    }
    self->die({FailureKind::aborted, "this rank has left the group"}, false);
    self->progress_.detach(self->id_);
  });
}

int Member::rank_of(int world_rank) const {
  return static_cast<int>(std::ranges::find(world_ranks_, world_rank) - world_ranks_.begin());
}

void Member::post_to(int rank, Kind kind, std::uint64_t number, std::uint64_t fingerprint,
                     std::string_view content, std::uint32_t round) {
  auto text = std::as_bytes(std::span(content)).first(std::min(content.size(), eager_limit));
  progress_.send(
      world_ranks_[rank],
      {.group = id_, .number = number, .fingerprint = fingerprint, .kind = kind, .round = round},
      text, nullptr, nullptr);
}

void Member::begin(const Pointer& operation) {
  if (dead_) return;
  progress_.expect(1);
  const auto id = operation->call().id;
  bool is_one_message = is_message(operation->call().collective);
  if (is_one_message) {
    messages_.emplace(id, operation);
  } else {
    queue_.push_back(operation);
  }
  auto claims = claims_.extract(id);
  if (!claims.empty()) {
    for (auto [from, fingerprint] : claims.mapped()) {
      Header said{.number = id.number,
                  .fingerprint = fingerprint,
                  .kind = is_one_message ? Kind::message : Kind::call};
      if (!agrees(from, said)) return;
    }
  }
  if (is_one_message) return start(operation);
  advance();
}

// A loop: as many operations as are queued may be complete as soon as they start.
void Member::advance() {
  if (advancing_) return;
  advancing_ = true;
  while (!queue_.empty() && !queue_.front()->is_started) start(Pointer(queue_.front()));
  advancing_ = false;
}

void Member::start(const Pointer& operation) {
  operation->is_started = true;
  check_gone(*operation);
  if (dead_) return;
  const auto& call = operation->call();
  if (!is_message(call.collective)) {
    tell_next(operation);
    return enter_round(operation);
  }
  if (call.collective == Collective::recv) {
    return await(operation, {call.root, Kind::message, call.number, 0}, bytes_of(call.output));
  }
  Header header{.group = id_,
                .number = call.number,
                .fingerprint = operation->fingerprint(),
                .kind = Kind::message};
  operation->pending = 2;  // the send, and until both are begun
  progress_.send(world_ranks_[call.root], header, bytes_of(call.input), operation,
                 [self = shared_from_this(), operation] { self->transfer_done(operation); });
  await(operation, {call.root, Kind::acknowledgement, call.number, 0}, {});
  transfer_done(operation);
}

void Member::tell_next(const Pointer& operation) {
  int next = (rank_ + 1) % size_;
  for (const auto& round : operation->plan().rounds) {
    if (std::ranges::find(round.sends, next, &Transfer::peer) != round.sends.end()) return;
  }
  post_to(next, Kind::call, operation->call().number, operation->fingerprint(), {});
}

void Member::await_previous(const Pointer& operation) {
  int last = (rank_ + size_ - 1) % size_;
  for (const auto& round : operation->plan().rounds) {
    if (std::ranges::find(round.receives, last, &Transfer::peer) != round.receives.end()) return;
  }
  await(operation, {last, Kind::call, operation->call().number, 0}, {});
}

void Member::enter_round(const Pointer& operation) {
  if (operation->round == operation->plan().rounds.size()) return complete(operation);
  const auto& round = operation->plan().rounds[operation->round];
  auto number = static_cast<std::uint32_t>(operation->round);
  operation->copy(round);
  operation->pending = 1;  // until all are begun
  for (const auto& send : round.sends) {
    ++operation->pending;
    progress_.send(world_ranks_[send.peer],
                   {.group = id_,
                    .number = operation->call().number,
                    .fingerprint = operation->fingerprint(),
                    .awaited = operation->bytes_from(send.peer),
                    .kind = Kind::part,
                    .round = number},
                   operation->bytes_of(send.piece), operation,
                   [self = shared_from_this(), operation] { self->transfer_done(operation); });
  }
  for (const auto& receive : round.receives) {
    await(operation, {receive.peer, Kind::part, operation->call().number, number},
          operation->bytes_of(receive.piece));
    if (dead_) return;
  }
  if (operation->round + 1 == operation->plan().rounds.size()) await_previous(operation);
  transfer_done(operation);
}

void Member::await(const Pointer& operation, Key key, std::span<std::byte> memory) {
  ++operation->pending;
  auto early = unexpected_.extract(key);
  if (!early.empty()) return take(early.mapped(), {operation, memory});
  awaited_.emplace(key, Awaited{operation, memory});
  if (auto absence = gone_.find(key.from); absence != gone_.end())
    miss(*operation, key.from, absence->second);
}

void Member::take(const Arrival& arrival, const Awaited& awaited) {
  const auto& operation = awaited.operation;
  bool counts_differ = arrival.header.kind == Kind::part &&
                       arrival.header.awaited != operation->bytes_for(rank_of(arrival.from));
  if (arrival.header.bytes != awaited.memory.size() || counts_differ) {
    // Of an all_to_all with counts: the one thing in which equal calls can differ.
    progress_.discard(arrival);
    return ask({.cause = CallQuery::Cause::difference,
                .call = operation->call(),
                .fingerprint = operation->fingerprint(),
                .rank = rank_,
                .asked = {rank_of(arrival.from)}});
  }
  if (arrival.header.kind == Kind::message)
    post_to(rank_of(arrival.from), Kind::acknowledgement, arrival.header.number, 0, {});
  progress_.fetch(arrival, awaited.memory.data(), operation,
                  [self = shared_from_this(), operation] { self->transfer_done(operation); });
}

void Member::transfer_done(const Pointer& operation) {
  if (--operation->pending > 0 || dead_) return;
  if (is_message(operation->call().collective)) return complete(operation);
  operation->sum(operation->plan().rounds[operation->round]);
  ++operation->round;
  enter_round(operation);
}

void Member::complete(const Pointer& operation) {
  progress_.expect(-1);
  if (is_message(operation->call().collective)) {
    messages_.erase(operation->call().id);
  } else {
    queue_.pop_front();
  }
  calls_.complete(operation->call().id);
  advance();
}

}  // namespace lockstep::mpi
