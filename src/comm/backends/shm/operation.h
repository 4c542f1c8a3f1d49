// Operation: the record of one operation that this process has posted.
//
// post() fills a record. While the operation is under way, any thread that makes progress uses the
// record; its owner empties it after delivering the results. The record is reused `depth` posts
// later, when the operation is complete. A claimed segment keeps its operation incomplete, so the
// record stays valid for the thread that claimed it.
//
// A small operation is inline: each rank writes its input to its slot, and each rank computes its
// own output from the slots of its peers and a private copy of its own input, in the same order on
// every rank. There is one hand-off, there are no segments, and no rank touches the buffers of
// another rank. A rank never reads its own slot: its peers have fetched those cache lines, and
// fetching them back would take as long as another hand-off. As in every operation, data in shared
// memory that is already in place is not written, because its owner may have continued and
// overwritten it.
#pragma once

#include "comm/backends/shm/arena.h"
#include "comm/backends/shm/peers.h"
#include "comm/backends/shm/plan.h"
#include "comm/backends/shm/ring.h"
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

// How to give a kept object new memory after an error, if a peer may still write to its memory.
struct Renewal {
  // The buffer that the object currently owns.
  Buffer (*memory)(void* object);
  // Gives the object new memory with the same contents, and never frees the old memory. Returns
  // false if that is impossible.
  bool (*renew)(void* object);
};

// Owns an object that must live until the operation is complete, such as a tensor. Move-only, never
// allocates.
class KeepAlive {
 public:
  KeepAlive() = default;
  // `renewal`, if not null, must outlive all objects.
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
  // Never releases the object.
  void leak() { object_ = nullptr; }

  // Returns an empty buffer if the object's memory cannot be renewed.
  [[nodiscard]] Buffer memory() const {
    return object_ && renewal_ ? renewal_->memory(object_) : Buffer();
  }
  [[nodiscard]] bool renew() { return object_ && renewal_ && renewal_->renew(object_); }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
  const Renewal* renewal_ = nullptr;
};

// The buffers of a call, as addresses. The backend makes them from the call's tensors.
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

// Operands: the buffers of one call of this rank, and their locations for peers. Peers access only
// buffers in an arena; all other buffers are copied:
//
//   inline    a small operation: the post copies the input, and this rank computes its output
//   staged    the owner copies the input into an arena block at the post, and the output out of a
//             block after completion; the naive way, which works everywhere
//   direct    the descriptor says where the buffer lies, and peers read and write it there
//
// place() only decides. Then the posting thread waits for earlier operations on the same bytes
// (must_precede()). After that, stage() copies the input.
class Operands {
 public:
  Operands() = default;
  // Places the operands of a call of member `me` of a channel. Decisions that peers must know are
  // equal on all ranks.
  [[nodiscard]] static Operands place(const PeerMappings& peers, const ChannelMemory& memory,
                                      int me, const CallInfo& info, CallBuffers&& buffers);
  // Copies inputs that must be staged, unless the call is inline. Throws BadInput if the arena is
  // full.
  void stage(const PeerMappings& peers);
  // Called when the operation is complete: copies the output to the caller's tensor if it was
  // staged.
  void deliver();
  // Frees the blocks that place() and stage() made and releases the caller's tensors. Peers must
  // have stopped using both.
  void release();
  // Never frees the blocks and tensors, because peers may still write to them.
  void leak();

  [[nodiscard]] bool is_inline() const { return inline_; }
  // The location at which peers access a buffer. For an inline call, the location of a moved input
  // if it lies in an arena. A default RemoteAddress for a buffer that is not used.
  [[nodiscard]] RemoteAddress input_location() const { return input_location_; }
  [[nodiscard]] RemoteAddress output_location() const { return output_location_; }
  // The caller's buffers; empty if this rank does not read or write them.
  [[nodiscard]] Buffer input() const { return input_; }
  [[nodiscard]] Buffer output() const { return output_; }
  [[nodiscard]] bool uses(Buffer buffer) const {
    return overlap(input_, buffer) || overlap(output_, buffer);
  }

  // Returns true if the call `later`, which is placed but not staged, must wait until this call has
  // been delivered: both touch the same bytes, and the order of execution is not sufficient.
  // `same_channel`: the two calls are executed in post order.
  [[nodiscard]] bool must_precede(const Operands& later, bool same_channel) const;

  // The caller's output if peers write to it directly, and the object that keeps its memory alive.
  [[nodiscard]] Buffer exposed() const {
    return output_location_.is_somewhere() && staged_output() == nullptr ? output_ : Buffer();
  }
  [[nodiscard]] KeepAlive& kept_output() {
    return keep_output_.exists() ? keep_output_ : keep_input_;
  }
  // Returns true if the output lies in memory that ranks share: the arena of another rank, or a
  // block that several ranks hold.
  [[nodiscard]] bool is_shared(const PeerMappings& peers) const {
    return output_location_.rank != peers.rank() || peers.arena()->is_held(output_.data);
  }

 private:
  [[nodiscard]] bool is_in_place() const {
    return output_.data == input_.data && output_.bytes == input_.bytes;
  }
  // The block that peers write the output to; null if they write to the caller's buffer.
  [[nodiscard]] const std::byte* staged_output() const {
    return output_block_ ? output_block_.get() : is_in_place() ? input_block_.get() : nullptr;
  }

  Buffer input_;
  Buffer output_;
  RemoteAddress input_location_;
  RemoteAddress output_location_;
  bool inline_ = false;
  ArenaBlock input_block_;   // the staged input, or in-place operand
  ArenaBlock output_block_;  // any other staged output
  KeepAlive keep_input_;
  KeepAlive keep_output_;
};

// The result of polling the members' slots.
enum class PollResult { waiting, ready, complete, mismatch };

class Operation {
 public:
  Operation() = default;
  // Call once, before any other function.
  void set_members(int members);

  // Takes the staged operands. Throws InvalidArgument if the call is invalid; the record is then
  // empty.
  void fill(const PeerMappings& peers, int me, const CallInfo& info, Operands&& operands);
  // Publishes the descriptor and the inline input.
  void publish(const PeerMappings& peers, const ChannelMemory& memory, const CallInfo& info);
  // Reads new posts of the other members and, once all have posted, makes the plan. After
  // `mismatch`, mismatched() is a member whose call differs from this rank's.
  [[nodiscard]] PollResult poll(const PeerMappings& peers, const ChannelMemory& memory);

  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  // Also valid for the previous operation of the record.
  [[nodiscard]] bool is_inline() const { return operands_.is_inline(); }
  [[nodiscard]] bool is_barrier() const { return collective_ == Collective::barrier; }
  [[nodiscard]] bool is_planned() const { return planned_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int mismatched() const { return mismatched_; }

  // Moves or combines the bytes of one segment.
  void run(int part, std::int64_t index) const;
  // Computes all outputs of this rank in an inline operation.
  void run_inline() const;

  [[nodiscard]] Operands& operands() { return operands_; }
  [[nodiscard]] const Operands& operands() const { return operands_; }
  // The timeout of the call's wait. Thread-safe.
  [[nodiscard]] Duration timeout() const {
    return Duration(timeout_.load(std::memory_order_relaxed));
  }
  // Releases the caller's tensors and empties the record.
  void release();

 private:
  void publish_counts(const PeerMappings& peers, const ChannelMemory& memory,
                      const CallInfo& info) const;
  // Records the buffers of a member that has posted.
  void note(const PeerMappings& peers, int member, RemoteAddress input, RemoteAddress output);
  // Records a member whose input was copied to its slot. `origin`: where the input lies in an
  // arena; may be null.
  void note_inline(int member, std::byte* input, std::byte* origin);
  // Sets shape and fingerprint, which are equal on all ranks.
  void agree(const CallInfo& info);
  void write_inline_input(std::byte* slot_input) const;
  void move_inline() const;
  [[nodiscard]] bool read_exchange(const PeerMappings& peers, const ChannelMemory& memory);
  [[nodiscard]] PollResult make_plan(const PeerMappings& peers, const ChannelMemory& memory);
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
  AllToAllCounts exchange_;
  const char* file_in_slot_ = nullptr;

  std::vector<std::byte*> inputs_;  // one per member, may be null
  std::vector<std::byte*> outputs_;
  std::vector<std::byte*> origins_;     // inline: where the input lies in an arena
  std::vector<std::byte> inline_copy_;  // of this rank's input, for this rank
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
