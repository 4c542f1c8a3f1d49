#include "comm/engines/mpi/member.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include "comm/diagnose/call_watch.h"

#include <algorithm>
#include <utility>

namespace lockstep::mpi {
namespace {

// When a line of the log says who is waited for.
constexpr Duration notice_after = std::chrono::seconds(30);

// Calls that a rank remembers for those that come later.
constexpr std::size_t remembered_calls = 64;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

}  // namespace

Member::Member(PostOffice& office, std::string group, std::uint64_t id, std::vector<int> places,
               int rank)
    : office_(office),
      group_(std::move(group)),
      id_(id),
      places_(std::move(places)),
      rank_(rank),
      size_(static_cast<int>(places_.size())) {}

void Member::join() {
  office_.give([self = shared_from_this()] { self->office_.attach(self->id_, self); });
}

std::uint64_t Member::post(const Call& call) {
  std::lock_guard lock(mutex_);
  failure_.refuse_if_any(name_of(call.collective), group_);
  auto number = ++counts_[route_of(call, rank_)];
  auto ticket = ++last_ticket_;
  auto operation = std::make_shared<Operation>(call, number, ticket, rank_, size_);
  open_.emplace(ticket, call.timeout);
  office_.give([self = shared_from_this(), operation] { self->begin(operation); });
  return ticket;
}

void Member::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  auto entry = open_.find(ticket);
  if (entry == open_.end()) return;
  auto timeout = entry->second;
  auto deadline = Deadline::after(timeout);
  auto notice = Deadline::after(notice_after);
  bool asked = false;
  while (open_.contains(ticket)) {
    failure_.rethrow_if_any();
    if (deadline.passed() && !asked) {
      asked = true;
      office_.give([self = shared_from_this(), ticket, timeout] {
        self->overdue(ticket, Inquest::Cause::deadline, timeout);
      });
    } else if (notice.passed() && !asked) {
      notice = Deadline::never();
      office_.give([self = shared_from_this(), ticket] {
        self->overdue(ticket, Inquest::Cause::notice, notice_after);
      });
    }
    auto most = std::min<Duration>(deadline.left(), notice.left());
    changed_.wait_for(lock, asked ? Duration(std::chrono::seconds(1))
                                  : std::min<Duration>(most, std::chrono::hours(1)));
  }
}

bool Member::done(std::uint64_t ticket) {
  std::lock_guard lock(mutex_);
  return failure_ || !open_.contains(ticket);
}

void Member::abort(std::string_view reason) {
  auto text =
      formatted("rank {} ended the group: {}{}", rank_, reason, watch::words_of_group(group_));
  {
    // At once: no later call of this rank gets through.
    std::lock_guard lock(mutex_);
    failure_.set(std::make_exception_ptr(Aborted(text)));
    changed_.notify_all();
  }
  office_.give([self = shared_from_this(), text] { self->die({'A', text}, true); });
}

void Member::leave(const rendezvous::GracePeriod& grace) {
  {
    std::unique_lock lock(mutex_);
    Duration longest{};
    for (const auto& [ticket, timeout] : open_) longest = std::max(longest, timeout);
    auto deadline = Deadline::after(grace.patience(longest));
    while (!open_.empty() && !failure_ && !deadline.passed())
      changed_.wait_for(lock, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
    failure_.set(std::make_exception_ptr(Aborted("this rank has left the group")));
  }
  office_.give([self = shared_from_this()] {
    auto& history = self->histories_[collectives];
    auto text = history.calls.empty() ? "" : describe_fully(history.calls.back().call);
    for (int rank = 0; rank < self->size_ && !self->dead_; ++rank) {
      if (rank != self->rank_) self->post_to(rank, Kind::left, history.last, 0, text);
    }
    self->die({'A', "this rank has left the group"}, false);
    self->office_.detach(self->id_);
  });
}

int Member::rank_of(int place) const {
  return static_cast<int>(std::ranges::find(places_, place) - places_.begin());
}

void Member::post_to(int rank, Kind kind, std::uint64_t number, std::uint64_t fingerprint,
                     std::string_view content, std::uint32_t round) {
  auto text = std::as_bytes(std::span(content)).first(std::min(content.size(), short_bytes));
  office_.send(
      places_[rank],
      {.group = id_, .number = number, .fingerprint = fingerprint, .kind = kind, .round = round},
      text, nullptr, nullptr);
}

void Member::begin(const Pointer& operation) {
  if (dead_) return;
  office_.expect(1);
  auto& history = histories_[operation->route()];
  history.last = operation->call().number;
  history.calls.push_back({operation->fingerprint(), operation->call().without_tensors()});
  if (history.calls.size() > remembered_calls) history.calls.pop_front();
  bool is_message = operation->call().is_message();
  if (is_message) {
    messages_.emplace(operation->ticket(), operation);
  } else {
    queue_.push_back(operation);
  }
  auto claims = claims_.extract({operation->route(), history.last});
  if (!claims.empty()) {
    for (auto [from, fingerprint] : claims.mapped()) {
      Header said{.number = history.last,
                  .fingerprint = fingerprint,
                  .kind = is_message ? Kind::message : Kind::call};
      if (!agrees(from, said)) return;
    }
  }
  if (is_message) return start(operation);
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
  if (!call.is_message()) {
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
  office_.send(places_[call.root], header, bytes_of(call.input), operation,
               [self = shared_from_this(), operation] { self->transfer_done(operation); });
  await(operation, {call.root, Kind::received, call.number, 0}, {});
  transfer_done(operation);
}

void Member::tell_next(const Pointer& operation) {
  int next = (rank_ + 1) % size_;
  for (const auto& round : operation->plan().rounds) {
    if (std::ranges::find(round.sends, next, &Transfer::peer) != round.sends.end()) return;
  }
  post_to(next, Kind::call, operation->call().number, operation->fingerprint(), {});
}

void Member::hear_from_last(const Pointer& operation) {
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
    office_.send(places_[send.peer],
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
  if (operation->round + 1 == operation->plan().rounds.size()) hear_from_last(operation);
  transfer_done(operation);
}

void Member::await(const Pointer& operation, Key key, std::span<std::byte> memory) {
  ++operation->pending;
  auto early = mail_.extract(key);
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
    office_.discard(arrival);
    return inquire({.cause = Inquest::Cause::difference,
                    .call = operation->call().without_tensors(),
                    .fingerprint = operation->fingerprint(),
                    .rank = rank_,
                    .waited = {},
                    .asked = {rank_of(arrival.from)},
                    .answers = {}});
  }
  if (arrival.header.kind == Kind::message)
    post_to(rank_of(arrival.from), Kind::received, arrival.header.number, 0, {});
  office_.fetch(arrival, awaited.memory.data(), operation,
                [self = shared_from_this(), operation] { self->transfer_done(operation); });
}

void Member::transfer_done(const Pointer& operation) {
  if (--operation->pending > 0 || dead_) return;
  if (operation->call().is_message()) return complete(operation);
  operation->sum(operation->plan().rounds[operation->round]);
  ++operation->round;
  enter_round(operation);
}

void Member::complete(const Pointer& operation) {
  office_.expect(-1);
  if (operation->call().is_message()) {
    messages_.erase(operation->ticket());
  } else {
    queue_.pop_front();
  }
  {
    std::lock_guard lock(mutex_);
    open_.erase(operation->ticket());
  }
  changed_.notify_all();
  advance();
}

}  // namespace lockstep::mpi
