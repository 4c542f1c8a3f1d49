// One call of the engine mpi while it runs: its tensors, its plan, and how far it has come.
#pragma once

#include "comm/backend/posted_call.h"
#include "comm/engines/mpi/header.h"
#include "comm/engines/mpi/plan.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <span>

namespace lockstep::mpi {

class Operation {
 public:
  // `rank` is this rank's number in a group of `size` ranks.
  Operation(const PostedCall& call, int rank, int size);

  // Blocks until end(), and throws its error. Any thread; everything else is the progress thread's.
  void wait() { end_.get_future().get(); }
  // Null: the operation is complete.
  void end(std::exception_ptr error);

  [[nodiscard]] Kind kind() const;
  [[nodiscard]] std::uint64_t number() const { return call_.number; }
  [[nodiscard]] std::uint64_t fingerprint() const { return call_.fingerprint; }
  // Returns true if `rank` takes part in the operation; in a collective, every rank does.
  [[nodiscard]] bool needs(int rank) const;

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] std::span<std::byte> bytes_of(Piece piece) const;
  // The byte counts of an uneven all_to_all; 0 for any other operation.
  [[nodiscard]] std::uint64_t bytes_for(int peer) const;
  [[nodiscard]] std::uint64_t bytes_from(int peer) const;
  // The local work of a round: copy() runs before its messages, sum() after them.
  void copy(const Round& round) const;
  void sum(const Round& round) const;

  bool is_over = false;
  std::size_t round = 0;
  int pending = 0;  // transfers of this round that are not done

 private:
  [[nodiscard]] std::uint64_t bytes_counted(std::span<const std::int64_t> counts, int peer) const;

  PostedCall call_;
  Plan plan_;
  int size_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::unique_ptr<std::byte[]> scratch_;
  std::promise<void> end_;
};

}  // namespace lockstep::mpi
