// Operation: what one process knows of one operation that it has posted.
//
// A record is filled by post(), used by any thread that makes progress while the operation is under
// way, and emptied when its owner has been given the results. It is reused `depth` posts later,
// when the operation is complete; a thread that has claimed a segment of it keeps it incomplete,
// and so keeps the record.
#pragma once

#include "comm/shm/descriptor.h"
#include "comm/shm/group_block.h"
#include "comm/shm/peers.h"
#include "comm/shm/plan.h"
#include "comm/shm/posting.h"
#include "comm/shm/staging.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::shm {

// What looking at the members' slots has found.
enum class Sight { waiting, ready, complete, mismatch };

class Operation {
 public:
  Operation() = default;
  // Once, before anything else.
  void set_members(int members);

  // Throws InvalidArgument when the call makes no sense, BadInput when the arena is full; the
  // record is then empty.
  void fill(const Peers& peers, int me, std::uint64_t sequence, Posting& posting);
  // Publishes the descriptor.
  void publish(const LaneMemory& memory, int me, const Posting& posting) const;
  // Reads what others have posted since the last look and, when all have, makes the plan. After
  // `mismatch`, mismatched() is a member that does not agree with this rank.
  [[nodiscard]] Sight look(const Peers& peers, const LaneMemory& memory);

  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  [[nodiscard]] bool is_planned() const { return planned_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int mismatched() const { return mismatched_; }
  // A member that had not posted at the last look; only while waiting.
  [[nodiscard]] int missing() const { return missing_; }

  // Moves or combines the bytes of one segment.
  void run(int part, std::int64_t index) const;

  [[nodiscard]] Staged& staged() { return staged_; }
  [[nodiscard]] const Staged& staged() const { return staged_; }
  // Of its wait. Any thread.
  [[nodiscard]] Duration timeout() const {
    return Duration(timeout_.load(std::memory_order_relaxed));
  }
  // The caller's tensors may go; the record is empty.
  void release();

 private:
  [[nodiscard]] Fingerprint agree(const Posting& posting, int members);
  [[nodiscard]] bool read_matrix(const LaneMemory& memory);
  [[nodiscard]] Sight make_plan(const LaneMemory& memory);
  void run_part(int part, Range range) const;
  void combine_part(int part, Range range) const;
  void move_part(int part, Range range) const;

  std::uint64_t sequence_ = 0;
  Collective collective_ = Collective::barrier;
  Op op_ = Op::sum;
  DType dtype_ = DType::uint8;
  Shape shape_;
  bool uneven_exchange_ = false;  // all_to_all with counts
  Fingerprint print_;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> matrix_;

  std::vector<std::byte*> inputs_;  // one a member, null where it has none
  std::vector<std::byte*> outputs_;
  std::vector<char> seen_;
  int unseen_ = 0;
  int missing_ = 0;
  int mismatched_ = -1;
  bool planned_ = false;
  bool stream_ = false;
  Plan plan_;

  Staged staged_;
  Keep keep_input_;
  Keep keep_output_;
  std::atomic<Duration::rep> timeout_{0};
};

}  // namespace lockstep::shm
