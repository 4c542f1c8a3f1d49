// One rank's part in one group of the engine mpi: carries out calls by the rounds of their plans
// (plan.h), all of them on the progress thread, while the threads that ask for them wait.
//
// A piece is taken only by the round of the call that it was sent for: each header carries the
// fingerprint of its call, and one that differs ends the call that waits for it.
//
// Invariants:
// - everything but the constants is touched by the progress thread alone;
// - once error_ is set nothing is running, awaited or kept, every message is discarded, and no
//   tensor is written except by transfers that are under way.
#pragma once

#include "comm/engines/mpi/operation.h"
#include "comm/engines/mpi/progress_thread.h"

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::mpi {

class Member final : public MessageHandler, public std::enable_shared_from_this<Member> {
 public:
  // `world_ranks` are the group's ranks in the MPI world; `id` is the group's in all messages.
  Member(ProgressThread& progress, std::uint64_t id, std::vector<int> world_ranks, int rank);

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] const std::vector<int>& world_ranks() const { return world_ranks_; }

  // Any thread:

  // Begins to take messages.
  void join();
  // As in BlockingEngine.
  void run(const PostedCall& call);
  void close(std::string_view reason) noexcept;
  // Tells the other ranks that this rank has left. No operation may be running.
  void leave() noexcept;

  // The progress thread:

  void arrived(Arrival arrival) override;
  void lost(int from, const std::string& how) override;

 private:
  using Pointer = std::shared_ptr<Operation>;
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

  void start(const Pointer& operation);
  void enter_round(const Pointer& operation);
  void send(const Pointer& operation, const Transfer& transfer);
  void await(const Pointer& operation, const Transfer& transfer);
  void take(const Arrival& arrival, const Awaited& awaited);
  void transfer_done(const Pointer& operation);
  void end(const Pointer& operation, std::exception_ptr error);
  // Ends everything that is under way, and whatever begins later, with `error`.
  void end_all(std::exception_ptr error);
  void tell_others(Kind kind, std::string_view content);
  // Called when the group fails: its other ranks may not reach the shutdown of the world either.
  void suspect_others();
  // Notes that `rank` will send nothing more here; ends the operations that wait for it.
  void gone(int rank, const std::string& why);
  [[nodiscard]] int rank_of(int world_rank) const;

  ProgressThread& progress_;
  const std::uint64_t id_;
  const std::vector<int> world_ranks_;
  const int rank_;
  const int size_;

  std::exception_ptr error_;
  std::set<Pointer> running_;  // one collective at most, and one message to and from each rank
  std::map<Key, Arrival> unexpected_;  // no operation waits for them yet
  std::map<Key, Awaited> awaited_;
  std::map<int, std::exception_ptr> gone_;
};

}  // namespace lockstep::mpi
