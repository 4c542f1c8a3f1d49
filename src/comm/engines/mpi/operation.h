// One posted call of the engine mpi: its tensors, its plan, and how far it has come.
#pragma once

#include "comm/backend/posted_call.h"
#include "comm/engines/mpi/plan.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lockstep::mpi {

class Operation {
 public:
  // Of rank `rank` of a group of `size`.
  Operation(const Call& call, int rank, int size);

  [[nodiscard]] const PostedCall& call() const { return call_; }
  [[nodiscard]] std::uint64_t fingerprint() const { return call_.fingerprint; }

  // Of a collective.
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] std::span<std::byte> bytes_of(Piece piece) const;
  // By the counts of an all_to_all; without counts, and in anything else, 0.
  [[nodiscard]] std::uint64_t bytes_for(int peer) const;
  [[nodiscard]] std::uint64_t bytes_from(int peer) const;
  // What a round does without messages: before them, and after.
  void copy(const Round& round) const;
  void sum(const Round& round) const;

  bool is_started = false;
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
};

}  // namespace lockstep::mpi
