#include "comm/backends/mpi/backend.h"

#include <lockstep/base/error.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/backend/blocking_backend.h"
#include "comm/backend/blocking_collectives.h"
#include "comm/backend/posted_call.h"
#include "comm/backend/tensors.h"
#include "comm/backends/mpi/library.h"
#include "comm/backends/mpi/plan.h"
#include "comm/backends/mpi/progress_thread.h"
#include "comm/kernels/combine.h"
#include "comm/rendezvous/meeting.h"
#include "sys/own_process.h"
#include "sys/process_info.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

namespace lockstep::mpi {
namespace {

std::byte* memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
}

// Returns true if the smaller operand is this rank's part of the larger one.
bool lies_in_place(const PostedCall& call, const std::byte* input, const std::byte* output,
                   int rank, int size) {
  if (input == nullptr || output == nullptr) return false;
  const bool scatters = call.collective == Collective::scatter;
  const auto& whole = scatters ? call.input : call.output;
  const auto begin = part_begin(call.output_counts, whole.numel(), size, rank) *
                     static_cast<std::int64_t>(call.input.element_size());
  return scatters ? output == input + begin : input == output + begin;
}

// For more ranks than the kernels support.
void sum_with_aten(const PostedCall& call, const std::vector<const std::byte*>& from, std::byte* to,
                   std::int64_t elements) {
  at::NoGradGuard no_grad;
  const auto& typed = call.input.defined() ? call.input : call.output;
  auto view = [&](const std::byte* memory) {
    return at::from_blob(const_cast<std::byte*>(memory), {elements},
                         at::TensorOptions(typed.scalar_type()));
  };
  std::vector<at::Tensor> values;
  for (const auto* memory : from) values.push_back(view(memory));
  view(to).copy_(reduce_in_tree(values, call.op));
}

// One running call of the backend mpi: its tensors, its plan and its progress.
class MpiOperation {
 public:
  // `rank` is this rank's number in a group of `size` ranks.
  MpiOperation(const PostedCall& call, int rank, int size)
      : call_(call), size_(size), input_(memory_of(call.input)), output_(memory_of(call.output)) {
    plan_ = make_move_schedule(call, rank, size, lies_in_place(call, input_, output_, rank, size));
    if (plan_.scratch_bytes > 0)
      scratch_ = std::make_unique_for_overwrite<std::byte[]>(plan_.scratch_bytes);
  }

  // Blocks until end(), and throws its error. Thread-safe. All other functions are called by the
  // progress thread only.
  void wait() { end_.get_future().get(); }
  // Null: the operation has completed.
  void end(std::exception_ptr error) {
    is_over = true;
    if (error) return end_.set_exception(std::move(error));
    end_.set_value();
  }

  [[nodiscard]] Kind kind() const {
    return is_message(call_.collective) ? Kind::message : Kind::collective;
  }

  [[nodiscard]] std::uint64_t number() const { return call_.number; }
  [[nodiscard]] std::uint64_t fingerprint() const { return call_.fingerprint; }
  // Returns true if `rank` takes part in the operation; in a collective, every rank does.
  [[nodiscard]] bool needs(int rank) const {
    return !is_message(call_.collective) || call_.root == rank;
  }

  [[nodiscard]] const MoveSchedule& plan() const { return plan_; }
  [[nodiscard]] std::span<std::byte> bytes_of(Piece piece) const {
    auto* base = piece.memory == Memory::input    ? input_
                 : piece.memory == Memory::output ? output_
                                                  : scratch_.get();
    return {base + piece.begin, static_cast<std::size_t>(piece.bytes)};
  }

  // Return the byte counts of an uneven all_to_all; 0 for other operations.
  [[nodiscard]] std::uint64_t bytes_for(int peer) const {
    return bytes_counted(call_.input_counts, peer);
  }

  [[nodiscard]] std::uint64_t bytes_from(int peer) const {
    return bytes_counted(call_.output_counts, peer);
  }

  // The local work of a round: copy() runs before its messages, sum() after them.
  void copy(const Round& round) const {
    for (const auto& copy : round.copies) {
      auto from = bytes_of(copy.from);
      if (!from.empty()) std::memcpy(bytes_of(copy.to).data(), from.data(), from.size());
    }
  }

  void sum(const Round& round) const {
    if (!round.sum) return;
    std::vector<const std::byte*> from;
    for (auto piece : round.sum->from) from.push_back(bytes_of(piece).data());
    auto to = bytes_of(round.sum->to);
    auto element = static_cast<std::int64_t>(lockstep::bytes_of(*call_.dtype));
    auto elements = static_cast<std::int64_t>(to.size()) / element;
    if (size_ > kernels::max_ranks) return sum_with_aten(call_, from, to.data(), elements);
    std::byte* outputs[] = {to.data()};
    kernels::combine({.dtype = *call_.dtype,
                      .op = call_.op,
                      .inputs = from,
                      .outputs = outputs,
                      .elements = elements});
  }

  bool is_over = false;
  std::size_t round = 0;
  int pending = 0;  // unfinished transfers of this round

 private:
  [[nodiscard]] std::uint64_t bytes_counted(std::span<const std::int64_t> counts, int peer) const {
    if (call_.collective != Collective::all_to_all || counts.empty()) return 0;
    return static_cast<std::uint64_t>(counts[peer]) * lockstep::bytes_of(*call_.dtype);
  }

  PostedCall call_;
  MoveSchedule plan_;
  int size_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::unique_ptr<std::byte[]> scratch_;
  std::promise<void> end_;
};

// One rank's part in one group of the backend mpi: executes the rounds of the calls' plans (plan.h)
// on the progress thread, while the calling threads wait.
//
// Each header contains the fingerprint of its call. If a round receives a message with another
// fingerprint, its call fails.
//
// Invariants:
// - everything but the constants is touched by the progress thread alone;
// - once error_ is set nothing is running, awaited or kept, every message is discarded, and no
//   tensor is written except by transfers that are under way.
class Member final : public BlockingCollectives,
                     public MessageHandler,
                     public std::enable_shared_from_this<Member> {
 public:
  // `world_ranks` are the group's ranks in the MPI world; `id` identifies the group in all
  // messages.
  Member(ProgressThread& progress, std::uint64_t id, std::vector<int> world_ranks, int rank)
      : progress_(progress),
        id_(id),
        world_ranks_(std::move(world_ranks)),
        rank_(rank),
        size_(static_cast<int>(world_ranks_.size())) {}

  // Makes a member that begins to receive messages. It leaves the group when the last copy of the
  // result is gone; the progress thread's tasks keep it alive meanwhile.
  [[nodiscard]] static std::shared_ptr<BlockingCollectives> joined(ProgressThread& progress,
                                                                   std::uint64_t id,
                                                                   std::vector<int> world_ranks,
                                                                   int rank) {
    auto member = std::make_shared<Member>(progress, id, std::move(world_ranks), rank);
    progress.give([member] { member->progress_.attach(member->id_, member); });
    BlockingCollectives* const collectives = member.get();
    return {collectives, [member](BlockingCollectives*) { member->leave(); }};
  }

  // Thread-safe functions of BlockingCollectives:

  [[nodiscard]] std::string_view name() const override { return "mpi"; }

  void run(const PostedCall& call) override {
    auto operation = std::make_shared<MpiOperation>(call, rank_, size_);
    progress_.give([self = shared_from_this(), operation] { self->start(operation); });
    operation->wait();
  }

  void close(std::string_view reason) noexcept override try {
    progress_.give([self = shared_from_this(), reason = std::string(reason)] {
      if (self->error_) return;
      self->tell_others(Kind::failed, shortened(reason, eager_limit));
      self->suspect_others();
      self->end_all(std::make_exception_ptr(Aborted("this rank has closed the group")));
    });
  } catch (const std::exception& error) {
    log::warning("the backend mpi: a group cannot be closed: {}", error.what());
  }

  [[nodiscard]] std::shared_ptr<BlockingCollectives> subset(std::span<const int> ranks,
                                                            const std::string& name, int rank,
                                                            Duration) override {
    std::vector<int> world_ranks;
    for (int member : ranks) world_ranks.push_back(world_ranks_.at(member));
    return joined(progress_, combine_fingerprints(id_, fingerprint(name)), std::move(world_ranks),
                  rank);
  }

  // Called by the progress thread only:

  void arrived(Arrival arrival) override {
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

  void lost(int from, const std::string& how) override {
    if (error_) return;
    if (from < 0) return end_all(std::make_exception_ptr(Aborted(how)));
    const int rank = rank_of(from);
    if (rank == size_) return;
    gone(rank, formatted("of {} was lost: {}", size_, how));
    lost_.insert(rank);
    // Transfers that have begun may never end.
    for (const auto& operation : std::set(running_)) {
      if (operation->needs(rank)) end(operation, gone_.at(rank));
    }
  }

 private:
  using Pointer = std::shared_ptr<MpiOperation>;
  // Identifies a piece that an operation waits for.
  struct Key {
    int from = -1;
    Kind kind = Kind::collective;
    std::uint64_t number = 0;
    std::uint32_t round = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Awaited {
    Pointer operation;
    std::span<std::byte> memory;
  };

  // Informs the other ranks that this rank has left. No operation may be running.
  void leave() noexcept try {
    progress_.give([self = shared_from_this()] {
      self->tell_others(Kind::left, {});
      self->end_all(std::make_exception_ptr(Aborted("this rank has left the group")));
      self->progress_.detach(self->id_);
    });
  } catch (const std::exception& error) {
    log::warning("the backend mpi: a group cannot be left: {}", error.what());
  }

  void start(const Pointer& operation) {
    if (error_) return operation->end(error_);
    running_.insert(operation);
    progress_.expect(1);
    enter_round(operation);
  }

  void enter_round(const Pointer& operation) {
    if (operation->round == operation->plan().rounds.size()) return end(operation, nullptr);
    const auto& round = operation->plan().rounds[operation->round];
    operation->copy(round);
    operation->pending = 1;  // until all transfers have begun
    for (const auto& transfer : round.sends) send(operation, transfer);
    for (const auto& transfer : round.receives) await(operation, transfer);
    transfer_done(operation);
  }

  // If the peer has left, it cannot receive the message. It has not completed this call either,
  // because it needs the message for that.
  void send(const Pointer& operation, const Transfer& transfer) {
    if (operation->is_over) return;
    if (auto why = gone_.find(transfer.peer); why != gone_.end())
      return end(operation, why->second);
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

  void await(const Pointer& operation, const Transfer& transfer) {
    if (operation->is_over) return;
    const Key key{.from = transfer.peer,
                  .kind = operation->kind(),
                  .number = operation->number(),
                  .round = static_cast<std::uint32_t>(operation->round)};
    const Awaited awaited{operation, operation->bytes_of(transfer.piece)};
    ++operation->pending;
    if (auto early = unexpected_.extract(key)) return take(early.mapped(), awaited);
    if (auto why = gone_.find(transfer.peer); why != gone_.end())
      return end(operation, why->second);
    awaited_.emplace(key, awaited);
  }

  void take(const Arrival& arrival, const Awaited& awaited) {
    const auto& operation = awaited.operation;
    const auto& header = arrival.header;
    const int from = rank_of(arrival.from);
    // A longer content is still at the sender, which cannot send it any more.
    if (header.tag != 0 && lost_.contains(from)) return end(operation, gone_.at(from));
    if (header.fingerprint != operation->fingerprint() || header.bytes != awaited.memory.size() ||
        header.awaited != operation->bytes_for(from)) {
      progress_.discard(arrival);
      return end(operation, std::make_exception_ptr(CallDiffers(from)));
    }
    progress_.fetch(arrival, awaited.memory.data(), operation,
                    [self = shared_from_this(), operation] { self->transfer_done(operation); });
  }

  void transfer_done(const Pointer& operation) {
    if (operation->is_over || --operation->pending > 0) return;
    operation->sum(operation->plan().rounds[operation->round]);
    ++operation->round;
    enter_round(operation);
  }

  void end(const Pointer& operation, std::exception_ptr error) {
    std::erase_if(awaited_, [&](const auto& entry) { return entry.second.operation == operation; });
    progress_.expect(-1);
    operation->end(std::move(error));
    running_.erase(operation);
  }

  // Ends all running operations, and all that begin later, with `error`.
  void end_all(std::exception_ptr error) {
    if (error_) return;
    error_ = std::move(error);
    for (const auto& operation : std::set(running_)) end(operation, error_);
    for (const auto& [key, arrival] : unexpected_) progress_.discard(arrival);
    unexpected_.clear();
  }

  void tell_others(Kind kind, std::string_view content) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      progress_.send(world_ranks_[rank], {.group = id_, .kind = kind},
                     std::as_bytes(std::span(content)), nullptr, nullptr);
    }
  }

  // Called when the group fails, because its other ranks may never reach the shutdown of the world.
  void suspect_others() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !gone_.contains(rank)) progress_.suspect(world_ranks_[rank]);
    }
  }

  // Notes that `rank` sends no more messages to this group; ends the operations that wait for it.
  void gone(int rank, const std::string& why) {
    gone_.emplace(rank, std::make_exception_ptr(PeerLost(formatted("rank {} {}", rank, why))));
    std::set<Pointer> waiting;
    for (const auto& [key, awaited] : awaited_) {
      if (key.from == rank) waiting.insert(awaited.operation);
    }
    for (const auto& operation : waiting) end(operation, gone_.at(rank));
  }

  [[nodiscard]] int rank_of(int world_rank) const {
    return static_cast<int>(std::ranges::find(world_ranks_, world_rank) - world_ranks_.begin());
  }

  ProgressThread& progress_;
  const std::uint64_t id_;
  const std::vector<int> world_ranks_;
  const int rank_;
  const int size_;

  std::exception_ptr error_;
  std::set<Pointer> running_;  // at most one collective, and one message per direction and rank
  std::map<Key, Arrival> unexpected_;  // not awaited by an operation yet
  std::map<Key, Awaited> awaited_;
  std::map<int, std::exception_ptr> gone_;  // ranks that send no more messages, and why
  std::set<int> lost_;  // those of gone_ whose processes have ended or cannot be reached
};

}  // namespace

bool has_mpi() { return !libraries().empty(); }

std::shared_ptr<Backend> make(std::string_view /*name*/, std::shared_ptr<Store> store, int rank,
                              int size, const BackendOptions& options) {
  auto& progress = ProgressThread::open();
  check_input(progress.size() >= size,
              "the backend mpi: rank {} of {} is one of {} processes that MPI ({}) knows of; start "
              "the program with that implementation's mpirun -n {}",
              rank, size, progress.size(), progress.library(), size);
  // The ranks exchange their rank in MPI's world, the time, and the identity of their process.
  auto texts = rendezvous::allgather_text(
      *store, {.prefix = "mpi/", .rank = rank, .size = size, .purpose = "to join over MPI"},
      formatted("{} {} {}", progress.rank(), Clock::now().time_since_epoch().count(),
                sys::process_identity()),
      options.join_timeout);
  std::vector<int> world_ranks;
  std::vector<std::string> processes;
  for (const auto& text : texts) {
    std::istringstream words(text);
    std::int64_t begun = 0;
    words >> world_ranks.emplace_back(-1) >> begun >> std::ws;
    std::getline(words, processes.emplace_back());
  }
  progress.give([&progress, world_ranks, processes] {
    for (std::size_t other = 0; other < processes.size(); ++other)
      progress.watch(world_ranks[other], processes[other]);
  });
  // The time and the process of rank 0 identify the world.
  auto member = Member::joined(progress, fingerprint(texts.front()), std::move(world_ranks), rank);
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(member), std::move(store), GroupNames(), rank, size, options.join_timeout);
}

}  // namespace lockstep::mpi
