#include "comm/engines/mpi/member.h"

#include <lockstep/base/error.h>

#include "base/format.h"
#include "base/log.h"
#include "base/visible.h"
#include "comm/backend/blocking_engine.h"

#include <algorithm>
#include <utility>

namespace lockstep::mpi {

Member::Member(ProgressThread& progress, std::uint64_t id, std::vector<int> world_ranks, int rank)
    : progress_(progress),
      id_(id),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      size_(static_cast<int>(world_ranks_.size())) {}

void Member::join() {
  progress_.give([self = shared_from_this()] { self->progress_.attach(self->id_, self); });
}

void Member::run(const PostedCall& call) {
  auto operation = std::make_shared<Operation>(call, rank_, size_);
  progress_.give([self = shared_from_this(), operation] { self->start(operation); });
  operation->wait();
}

void Member::close(std::string_view reason) noexcept try {
  progress_.give([self = shared_from_this(), reason = std::string(reason)] {
    if (self->error_) return;
    self->tell_others(Kind::failed, shortened(reason, eager_limit));
    self->suspect_others();
    self->end_all(std::make_exception_ptr(Aborted("this rank has closed the group")));
  });
} catch (const std::exception& error) {
  log::warning("the backend mpi: a group cannot be closed: {}", error.what());
}

void Member::leave() noexcept try {
  progress_.give([self = shared_from_this()] {
    self->tell_others(Kind::left, {});
    self->end_all(std::make_exception_ptr(Aborted("this rank has left the group")));
    self->progress_.detach(self->id_);
  });
} catch (const std::exception& error) {
  log::warning("the backend mpi: a group cannot be left: {}", error.what());
}

void Member::tell_others(Kind kind, std::string_view content) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    progress_.send(world_ranks_[rank], {.group = id_, .kind = kind},
                   std::as_bytes(std::span(content)), nullptr, nullptr);
  }
}

void Member::suspect_others() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && !gone_.contains(rank)) progress_.suspect(world_ranks_[rank]);
  }
}

int Member::rank_of(int world_rank) const {
  return static_cast<int>(std::ranges::find(world_ranks_, world_rank) - world_ranks_.begin());
}

void Member::start(const Pointer& operation) {
  if (error_) return operation->end(error_);
  running_.insert(operation);
  progress_.expect(1);
  enter_round(operation);
}

void Member::enter_round(const Pointer& operation) {
  if (operation->round == operation->plan().rounds.size()) return end(operation, nullptr);
  const auto& round = operation->plan().rounds[operation->round];
  operation->copy(round);
  operation->pending = 1;  // until all are begun
  for (const auto& transfer : round.sends) send(operation, transfer);
  for (const auto& transfer : round.receives) await(operation, transfer);
  transfer_done(operation);
}

// A rank that has gone can receive nothing; had it completed this call, it would have received
// this before.
void Member::send(const Pointer& operation, const Transfer& transfer) {
  if (operation->is_over) return;
  if (auto why = gone_.find(transfer.peer); why != gone_.end()) return end(operation, why->second);
  ++operation->pending;
  progress_.send(world_ranks_[transfer.peer],
                 {.group = id_,
                  .number = operation->number(),
                  .fingerprint = operation->fingerprint(),
                  .awaited = operation->bytes_from(transfer.peer),
                  .kind = operation->kind(),
                  .round = static_cast<std::uint32_t>(operation->round)},
                 operation->bytes_of(transfer.piece), operation,
                 [self = shared_from_this(), operation] { self->transfer_done(operation); });
}

void Member::await(const Pointer& operation, const Transfer& transfer) {
  if (operation->is_over) return;
  const Key key{.from = transfer.peer,
                .kind = operation->kind(),
                .number = operation->number(),
                .round = static_cast<std::uint32_t>(operation->round)};
  const Awaited awaited{operation, operation->bytes_of(transfer.piece)};
  ++operation->pending;
  if (auto early = unexpected_.extract(key)) return take(early.mapped(), awaited);
  if (auto why = gone_.find(transfer.peer); why != gone_.end()) return end(operation, why->second);
  awaited_.emplace(key, awaited);
}

void Member::arrived(Arrival arrival) {
  const int from = rank_of(arrival.from);
  if (from == size_ || error_) return progress_.discard(arrival);
  const auto& header = arrival.header;
  if (header.kind == Kind::left) return gone(from, "left the group");
  if (header.kind == Kind::failed) {
    const std::string_view reason(reinterpret_cast<const char*>(arrival.content.data()),
                                  arrival.content.size());
    gone(from, formatted("closed the group{}{}", reason.empty() ? "" : ": ", reason));
    suspect_others();
    return end_all(gone_.at(from));
  }
  const Key key{from, header.kind, header.number, header.round};
  if (auto awaited = awaited_.extract(key)) return take(arrival, awaited.mapped());
  unexpected_.emplace(key, std::move(arrival));
}

void Member::take(const Arrival& arrival, const Awaited& awaited) {
  const auto& operation = awaited.operation;
  const auto& header = arrival.header;
  const int from = rank_of(arrival.from);
  if (header.fingerprint != operation->fingerprint() || header.bytes != awaited.memory.size() ||
      header.awaited != operation->bytes_for(from)) {
    progress_.discard(arrival);
    return end(operation, std::make_exception_ptr(CallDiffers(from)));
  }
  progress_.fetch(arrival, awaited.memory.data(), operation,
                  [self = shared_from_this(), operation] { self->transfer_done(operation); });
}

void Member::transfer_done(const Pointer& operation) {
  if (operation->is_over || --operation->pending > 0) return;
  operation->sum(operation->plan().rounds[operation->round]);
  ++operation->round;
  enter_round(operation);
}

void Member::end(const Pointer& operation, std::exception_ptr error) {
  std::erase_if(awaited_, [&](const auto& entry) { return entry.second.operation == operation; });
  progress_.expect(-1);
  operation->end(std::move(error));
  running_.erase(operation);
}

void Member::end_all(std::exception_ptr error) {
  if (error_) return;
  error_ = std::move(error);
  for (const auto& operation : std::set(running_)) end(operation, error_);
  for (const auto& [key, arrival] : unexpected_) progress_.discard(arrival);
  unexpected_.clear();
}

void Member::gone(int rank, const std::string& why) {
  gone_.emplace(rank, std::make_exception_ptr(PeerLost(formatted("rank {} {}", rank, why))));
  std::set<Pointer> waiting;
  for (const auto& [key, awaited] : awaited_) {
    if (key.from == rank) waiting.insert(awaited.operation);
  }
  for (const auto& operation : waiting) end(operation, gone_.at(rank));
}

void Member::lost(int from, const std::string& how) {
  if (error_) return;
  if (from < 0) return end_all(std::make_exception_ptr(Aborted(how)));
  const int rank = rank_of(from);
  if (rank == size_) return;
  gone(rank, formatted("of {} was lost: {}", size_, how));
  // A transfer that has begun may never end.
  for (const auto& operation : std::set(running_)) {
    if (operation->needs(rank)) end(operation, gone_.at(rank));
  }
}

}  // namespace lockstep::mpi
