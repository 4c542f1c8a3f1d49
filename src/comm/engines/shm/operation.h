// Operation: what one process knows of one operation that it has posted.
//
// A record is filled by post(), used by any thread that makes progress while the operation is under
// way, and emptied when its owner has been given the results. It is reused `depth` posts later,
// when the operation is complete; a thread that has claimed a segment of it keeps it incomplete,
// and so keeps the record.
//
// A small operation is inline: each rank's input rides in its slot, and each rank computes its own
// output from all slots, in the same order as every other rank. There is one hand-off, there are no
// segments, and no rank touches the buffers of another. Where ranks share memory, elements that
// already lie at their place are not copied, as in every operation: their owner may have written
// there again meanwhile.
#pragma once

#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/plan.h"
#include "comm/engines/shm/ring.h"
#include "comm/kernels/combine.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/call.h>

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::shm {

struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

[[nodiscard]] inline bool overlap(Buffer a, Buffer b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// How to replace the memory of a kept object after an error, because a peer may still write to it.
struct Renewal {
  // The memory that it has now.
  Buffer (*memory)(void* object);
  // Gives it fresh memory with the same contents, and never frees what it had. False: it cannot.
  bool (*renew)(void* object);
};

// Something that must live until the operation is complete, such as a tensor. Move-only, never
// allocates.
class KeepAlive {
 public:
  KeepAlive() = default;
  // `renewal`, if any, lives for ever.
  KeepAlive(void* object, void (*release)(void*), const Renewal* renewal = nullptr)
      : object_(object), release_(release), renewal_(renewal) {}
  KeepAlive(KeepAlive&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)),
        release_(other.release_),
        renewal_(other.renewal_) {}
  KeepAlive& operator=(KeepAlive&& other) noexcept {
    reset();
    object_ = std::exchange(other.object_, nullptr);
    release_ = other.release_;
    renewal_ = other.renewal_;
    return *this;
  }
  ~KeepAlive() { reset(); }

  [[nodiscard]] bool exists() const { return object_ != nullptr; }
  void reset() {
    if (object_) release_(std::exchange(object_, nullptr));
  }
  // Never releases it.
  void leak() { object_ = nullptr; }

  // Empty where its memory cannot be renewed.
  [[nodiscard]] Buffer memory() const {
    return object_ && renewal_ ? renewal_->memory(object_) : Buffer();
  }
  [[nodiscard]] bool renew() { return object_ && renewal_ && renewal_->renew(object_); }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
  const Renewal* renewal_ = nullptr;
};

// The buffers of a call, as addresses: what the backend makes of its tensors.
struct CallBuffers {
  Buffer input;
  Buffer output;
  KeepAlive keep_input = {};
  KeepAlive keep_output = {};
};

struct FreeInArena {
  Arena* arena = nullptr;
  void operator()(std::byte* block) const { arena->free(block); }
};
using ArenaBlock = std::unique_ptr<std::byte, FreeInArena>;

// Operands: the buffers of one call of this rank, and where peers find them. Peers touch only what
// lies in an arena; everything else is copied:
//
//   inline    a small operation: the input rides in the slot, and this rank computes its own output
//   staged    the input is copied into an arena block at the post, and the output out of one after
//             completion, by the owner; the naive way, which works everywhere
//   direct    the descriptor says where the buffer lies, and peers read and write it there
//
// place() decides and copies nothing. Then the poster waits for earlier operations on the same
// bytes (must_precede), and only then stage() copies the input.
class Operands {
 public:
  Operands() = default;
  // The operands of a call of member `me` of a channel. All ranks choose the same way where peers
  // must know it.
  [[nodiscard]] static Operands place(const Peers& peers, const ChannelMemory& memory, int me,
                                      const CallInfo& info, CallBuffers&& buffers);
  // Copies in what must be copied, unless the call is inline. Throws BadInput when the arena is
  // full.
  void stage(const Peers& peers);
  // The operation is complete: the output goes where the caller wants it.
  void deliver();
  // Frees the blocks of stage() and releases the caller's tensors. No rank uses either any more.
  void release();
  // Forgets both without freeing them, because peers may still write there.
  void leak();

  [[nodiscard]] bool is_inline() const { return inline_; }
  // True for an inline call whose input has a part for each rank: this rank's own part is not
  // copied to the slot but read from the input when the call is executed.
  [[nodiscard]] bool keeps_own_part() const { return keeps_own_part_; }
  // Where peers access a buffer; nowhere if this rank does not use it. For an inline call, where an
  // input that is moved lies in an arena, if it does.
  [[nodiscard]] Location input_location() const { return input_location_; }
  [[nodiscard]] Location output_location() const { return output_location_; }
  // The caller's own; empty where this rank does not read or write it.
  [[nodiscard]] Buffer input() const { return input_; }
  [[nodiscard]] Buffer output() const { return output_; }
  [[nodiscard]] bool uses(Buffer buffer) const {
    return overlap(input_, buffer) || overlap(output_, buffer);
  }

  // Returns true if a call posted later, which is placed and not staged, must wait until this one
  // has been delivered: it touches the same bytes, and the order of the channel alone would not do.
  // `same_channel`: the two are executed in post order anyway.
  [[nodiscard]] bool must_precede(const Operands& later, bool same_channel) const;

  // The caller's own output, where peers write to it, and what keeps it.
  [[nodiscard]] Buffer exposed() const {
    return output_location_.is_somewhere() && staged_output() == nullptr ? output_ : Buffer();
  }
  [[nodiscard]] KeepAlive& kept_output() {
    return keep_output_.exists() ? keep_output_ : keep_input_;
  }
  // It lies in memory that ranks share: another one's arena, or a block that several hold.
  [[nodiscard]] bool is_shared(const Peers& peers) const {
    return output_location_.rank != peers.rank() || peers.arena()->is_held(output_.data);
  }

 private:
  [[nodiscard]] bool is_in_place() const {
    return output_.data == input_.data && output_.bytes == input_.bytes;
  }
  // The block that peers write the output to; null if they write to the caller's own.
  [[nodiscard]] const std::byte* staged_output() const {
    return output_block_ ? output_block_.get() : is_in_place() ? input_block_.get() : nullptr;
  }

  Buffer input_;
  Buffer output_;
  Location input_location_;
  Location output_location_;
  bool inline_ = false;
  bool keeps_own_part_ = false;
  ArenaBlock input_block_;   // where the input is staged, and the output of a call in place
  ArenaBlock output_block_;  // where any other output is staged
  KeepAlive keep_input_;
  KeepAlive keep_output_;
};

// The result of polling the slots of the members.
enum class PollResult { waiting, ready, complete, mismatch };

class Operation {
 public:
  Operation() = default;
  // Once, before anything else.
  void set_members(int members);

  // Stages the operands, which are placed. Throws InvalidArgument when the call makes no sense,
  // BadInput when the arena is full; the record is then empty.
  void fill(const Peers& peers, int me, const CallInfo& info, Operands&& operands);
  // Publishes the descriptor, and the inline input.
  void publish(const Peers& peers, const ChannelMemory& memory, const CallInfo& info);
  // Reads what others have posted since the last poll and, when all have, makes the plan. After
  // `mismatch`, mismatched() is a member that does not agree with this rank.
  [[nodiscard]] PollResult poll(const Peers& peers, const ChannelMemory& memory);

  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  // Also of the operation that was here last.
  [[nodiscard]] bool is_inline() const { return operands_.is_inline(); }
  [[nodiscard]] bool is_barrier() const { return collective_ == Collective::barrier; }
  [[nodiscard]] bool is_planned() const { return planned_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int mismatched() const { return mismatched_; }

  // Moves or combines the bytes of one segment.
  void run(int part, std::int64_t index) const;
  // All that this rank gets out of an inline operation.
  void run_inline() const;

  [[nodiscard]] Operands& operands() { return operands_; }
  [[nodiscard]] const Operands& operands() const { return operands_; }
  // Of its wait. Any thread.
  [[nodiscard]] Duration timeout() const {
    return Duration(timeout_.load(std::memory_order_relaxed));
  }
  // The caller's tensors may go; the record is empty.
  void release();

 private:
  void publish_counts(const Peers& peers, const ChannelMemory& memory, const CallInfo& info) const;
  // These are the buffers of a member that has posted.
  void note(const Peers& peers, int member, Location input, Location output);
  // The same for one whose slot has its input, which lies at `origin`.
  void note_inline(int member, std::byte* input, std::byte* origin);
  // Sets what all ranks agree on: shape and fingerprint.
  void agree(const CallInfo& info);
  void write_inline_input() const;
  void move_inline() const;
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
  Fingerprint print_;
  std::vector<std::int64_t> counts_;
  Exchange exchange_;
  const char* file_in_slot_ = nullptr;

  std::vector<std::byte*> inputs_;  // one per member, null if it has none
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> origins_;  // inline: where in an arena the input lies
  std::bitset<kernels::max_ranks> seen_;
  int unseen_ = 0;
  int mismatched_ = -1;
  bool planned_ = false;
  bool stream_ = false;
  Plan plan_;

  Operands operands_;
  std::atomic<Duration::rep> timeout_{0};
};

}  // namespace lockstep::shm
