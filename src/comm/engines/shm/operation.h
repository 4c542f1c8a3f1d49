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

#include "comm/call/dtype.h"
#include "comm/engines/shm/arena.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/plan.h"
#include "comm/engines/shm/ring.h"
#include "comm/kernels/combine.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/op.h>

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::shm {

// Posting: one call as the engine takes it. Addresses, not tensors.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

[[nodiscard]] inline bool overlap(Buffer a, Buffer b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// How to give what is kept other memory, after an error: a peer may still write to what it has.
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

struct Posting {
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  int root = 0;  // of send and recv: the peer
  DType dtype = DType::uint8;
  Buffer input;
  Buffer output;
  // Elements, as in Call; only uneven ones are given.
  std::span<const std::int64_t> input_counts = {};
  std::span<const std::int64_t> output_counts = {};
  std::string_view tag = {};
  Duration timeout{};
  std::source_location where = std::source_location::current();
  KeepAlive keep_input = {};
  KeepAlive keep_output = {};

  [[nodiscard]] bool is_uneven() const { return !input_counts.empty() || !output_counts.empty(); }
};

// The data path of a call: which of the ways below it takes. Chosen once a post; every rank
// finds the same for what peers must know, since counts are agreed on.
struct DataPath {
  // Small: the input rides in the slot. Else each buffer is accessed where it lies, or staged in a
  // block of the arena.
  bool is_carried = false;
  // Carried: of what each rank gets a part of, this rank's own is not passed on but taken from the
  // input when the call is carried out.
  bool keeps_own_part = false;
  std::int64_t count = 0;  // Shape::count, from whichever buffer this rank has
  bool reads = false;  // whether this call's input is read, and its output written, on this rank
  bool writes = false;
  // Where peers access a buffer; nowhere: it is staged. Carried: where an input that is moved lies
  // in an arena, if it does. Nowhere for a buffer that is not used.
  Location input;
  Location output;

  // Whether the input, or some of it, has been copied when the call is posted.
  [[nodiscard]] bool copies_input() const { return reads && (is_carried || !input.is_somewhere()); }
};

// Of a call on a channel of `members`, this rank being number `me`, whose slots carry so many
// bytes.
[[nodiscard]] DataPath choose_path(const Peers& peers, const Posting& posting, int members, int me,
                                   std::size_t carried_bytes);

// Staging: how the buffers of one call take part. Peers touch only what lies in an arena;
// everything else is copied:
//
//   carried   a small operation: the input rides in the slot, and this rank computes its own output
//   staged    the input is copied into an arena block at the post, and the output out of one after
//             completion, by the owner; the naive way, which works everywhere
//   direct    the descriptor says where the buffer lies, and peers read and write it there
// The buffers of one call of this rank, and where peers find them.
class Staged {
 public:
  Staged() = default;
  // Of a placed call: copies the input in where it must be. Throws BadInput when the arena is full.
  Staged(const Peers& peers, Buffer input, Buffer output, const DataPath& path);
  // From now on those of a carried call: nothing is copied here.
  void carry(Buffer input, Buffer output, const DataPath& path);
  Staged(Staged&& other) noexcept { *this = std::move(other); }
  Staged& operator=(Staged&& other) noexcept;
  ~Staged() { release(); }

  [[nodiscard]] Location input() const { return input_location_; }
  [[nodiscard]] Location output() const { return output_location_; }
  // The caller's own; empty where it is not used.
  [[nodiscard]] Buffer own_input() const { return input_; }
  [[nodiscard]] Buffer own_output() const { return output_; }
  [[nodiscard]] bool keeps_own_part() const { return keeps_own_part_; }

  // The caller's own output, where peers write to it.
  [[nodiscard]] Buffer exposed() const {
    return output_location_.is_somewhere() && output_block_ == nullptr ? output_ : Buffer();
  }
  // It lies in memory that ranks share: another one's arena, or a block that several hold.
  [[nodiscard]] bool is_shared(const Peers& peers) const {
    return output_location_.rank != peers.rank() || peers.arena()->is_held(output_.data);
  }

  // The operation is complete: the output goes where the caller wants it.
  void copy_out();
  // Frees what this made; nobody may use it any more.
  void release();
  // Never frees it: peers may still write there.
  void leak();

  // Whether an operation posted later must wait until this one has been taken out: it touches the
  // same bytes, and the order of the channel alone would not do. `same_channel`: operations of the
  // two are executed in post order anyway. `is_copied`: the later one's input is copied at its
  // post.
  struct Later {
    Buffer input;
    Buffer output;
    bool same_channel;
    bool is_copied;
  };
  [[nodiscard]] bool must_precede(const Later& later) const;

 private:
  // What the owner delivers itself, after peers have gone on.
  [[nodiscard]] bool delivers_late() const { return output_block_ != nullptr || carried_; }

  Buffer input_;  // the caller's; empty when not used
  Buffer output_;
  Location input_location_;
  Location output_location_;
  bool carried_ = false;
  bool keeps_own_part_ = false;  // of the input of a carried call, which is copied but for that
  Arena* arena_ = nullptr;
  std::byte* input_block_ = nullptr;   // in the arena, when staged
  std::byte* output_block_ = nullptr;  // may be the same
};

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
