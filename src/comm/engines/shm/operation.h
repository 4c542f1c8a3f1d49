// Operation: what one process knows of one operation that it has posted.
//
// A record is filled by post(), used by any thread that makes progress while the operation is under
// way, and emptied when its owner has been given the results. It is reused `depth` posts later,
// when the operation is complete; a thread that has claimed a segment of it keeps it incomplete,
// and so keeps the record.
//
// A small operation is carried: each rank's input rides in its slot, and each computes its own
// output from all of them, in the same order as everybody else. One hand-off, no segments, and
// nobody touches another's buffers. Where ranks share memory, what already lies at its place is
// left alone, as in every operation: its owner may have gone on and written there again.
#pragma once

#include "comm/engines/shm/data_path.h"
#include "comm/engines/shm/descriptor.h"
#include "comm/engines/shm/exchange.h"
#include "comm/engines/shm/group_block.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/plan.h"
#include "comm/engines/shm/posting.h"
#include "comm/engines/shm/staging.h"
#include "comm/kernels/combine.h"

#include <atomic>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::shm {

// What looking at the members' slots has found.
enum class PollResult { waiting, ready, complete, mismatch };

class Operation {
 public:
  Operation() = default;
  // Once, before anything else.
  void set_members(int members);

  // Throws InvalidArgument when the call makes no sense, BadInput when the arena is full; the
  // record is then empty.
  void fill(const Peers& peers, int me, std::uint64_t sequence, const DataPath& path,
            Posting& posting);
  // Publishes the descriptor, and what is carried.
  void publish(const Peers& peers, const ChannelMemory& memory, int me, const Posting& posting);
  // Reads what others have posted since the last look and, when all have, makes the plan. After
  // `mismatch`, mismatched() is a member that does not agree with this rank.
  [[nodiscard]] PollResult look(const Peers& peers, const ChannelMemory& memory);

  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  // Also of the operation that was here last.
  [[nodiscard]] bool is_carried() const { return carried_; }
  [[nodiscard]] bool is_barrier() const { return collective_ == Collective::barrier; }
  [[nodiscard]] bool is_planned() const { return planned_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int mismatched() const { return mismatched_; }

  // Moves or combines the bytes of one segment.
  void run(int part, std::int64_t index) const;
  // All that this rank gets out of a carried operation.
  void run_carried() const;

  [[nodiscard]] Staged& staged() { return staged_; }
  [[nodiscard]] const Staged& staged() const { return staged_; }
  // Of its wait. Any thread.
  [[nodiscard]] Duration timeout() const {
    return Duration(timeout_.load(std::memory_order_relaxed));
  }
  // The results are complete: they go where the caller wants them.
  void copy_out() { staged_.copy_out(); }
  // The caller's tensors may go; the record is empty.
  void release();
  // After an error: what peers may still write to is never used again.
  void leak();
  // The caller's own output, where peers write to it, and what keeps it.
  [[nodiscard]] Buffer exposed() const { return staged_.exposed(); }
  [[nodiscard]] KeepAlive& kept_output() {
    return keep_output_.exists() ? keep_output_ : keep_input_;
  }

 private:
  void publish_counts(const Peers& peers, const ChannelMemory& memory, int me,
                      const Posting& posting) const;
  // These are the buffers of a member that has posted.
  void note(const Peers& peers, int member, Location input, Location output);
  // The same for one whose slot carries its input, which lies at `origin`.
  void note_carried(int member, std::byte* input, std::byte* origin);
  [[nodiscard]] Fingerprint agree(const Posting& posting, int members, std::int64_t count);
  void carry_input() const;
  void move_carried() const;
  [[nodiscard]] bool read_exchange(const Peers& peers, const ChannelMemory& memory);
  [[nodiscard]] PollResult make_plan(const Peers& peers, const ChannelMemory& memory);
  [[nodiscard]] bool moves_nothing() const;
  void run_part(int part, std::int64_t index) const;
  void combine_part(int part, Range range) const;
  void move_part(int part, Range range) const;

  std::uint64_t sequence_ = 0;
  Collective collective_ = Collective::barrier;
  Op op_ = Op::sum;
  DType dtype_ = DType::uint8;
  int me_ = 0;
  Shape shape_;
  bool uneven_exchange_ = false;  // all_to_all with counts
  bool carried_ = false;
  Fingerprint print_;
  std::vector<std::int64_t> counts_;
  Exchange exchange_;
  const char* file_in_slot_ = nullptr;

  std::vector<std::byte*> inputs_;  // one per member, null if it has none
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> origins_;  // carried: where in an arena the input lies
  std::bitset<kernels::max_ranks> seen_;
  int unseen_ = 0;
  int mismatched_ = -1;
  bool planned_ = false;
  bool stream_ = false;
  Plan plan_;

  Staged staged_;
  KeepAlive keep_input_;
  KeepAlive keep_output_;
  std::atomic<Duration::rep> timeout_{0};
};

}  // namespace lockstep::shm
