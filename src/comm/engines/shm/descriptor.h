// Descriptor: one call as a rank posts it in shared memory, and as others read it.
//
// Invariants of a slot (one a member and ring position; only that member writes):
//   - stamp = sequence * 2 means: the fields are those of operation `sequence` and will stand until
//     it is complete.
//   - stamp = sequence * 2 + 1 means: the fields are being written for `sequence`; the operation
//     that stood there before is complete. So a reader may trust what it copied when it saw the
//     same even stamp before and after (a seqlock; fields are atomics, so a torn copy is thrown
//     away and not undefined).
//   - Stamps only grow.
#pragma once

#include "base/fingerprint.h"
#include "comm/call/dtype.h"
#include "comm/engines/shm/location.h"
#include "comm/engines/shm/plan.h"
#include "sys/shared_text.h"

#include <lockstep/comm/op.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

namespace lockstep::shm {

// What ranks must agree on, packed so that comparing takes three words.
struct Fingerprint {
  std::uint64_t call = 0;   // collective, op, dtype, root, even or not
  std::uint64_t count = 0;  // elements
  std::uint64_t names = 0;  // hash of the tag and of uneven counts
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// Of a tag; most calls have none.
[[nodiscard]] inline std::uint64_t names_of(std::string_view tag) {
  return tag.empty() ? 0 : fingerprint(tag);
}

struct Agreement {
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  DType dtype = DType::uint8;
  int root = 0;
  bool uneven = false;
  std::uint64_t count = 0;

  // send and recv are the two ends of one call. What a collective does not use does not count.
  [[nodiscard]] Fingerprint fingerprint(std::uint64_t names) const;
  [[nodiscard]] static Agreement of(const Fingerprint& print);
};

inline Fingerprint Agreement::fingerprint(std::uint64_t names) const {
  auto kind = collective == Collective::recv ? Collective::send : collective;
  std::uint64_t word = static_cast<std::uint64_t>(kind) | std::uint64_t{uneven} << 8;
  if (combines(kind)) word |= static_cast<std::uint64_t>(op) << 16;
  if (kind != Collective::barrier) word |= static_cast<std::uint64_t>(dtype) << 24;
  if (has_root(kind)) word |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32;
  return {word, count, names};
}

// One cache line that the hand-off reads, and a cold rest for messages.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> stamp{0};
  std::atomic<std::uint64_t> call{0};
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> names{0};
  std::atomic<std::uint64_t> input{0};
  std::atomic<std::uint64_t> output{0};
  std::atomic<std::uint64_t> line{
      0};  // of the call site; the collective as its caller named it lies above it
  alignas(64) sys::SharedText<12> tag;
  sys::SharedText<4> file;
};
static_assert(sizeof(Slot) == 192);

// What the hand-off needs.
struct Descriptor {
  Fingerprint print;
  Location input;
  Location output;
};

struct CallSite {
  Collective collective = Collective::barrier;  // send and recv told apart
  std::string_view tag;
  std::source_location where;
};

// Says that the slot is being written for `sequence`; what belongs to it outside may change from
// then on. write() begins so, too.
void begin_write(Slot& slot, std::uint64_t sequence);
// `file_in_slot`: the file name that the slot holds, kept by its owner from call to call.
void write(Slot& slot, std::uint64_t sequence, const Descriptor& descriptor, const CallSite& site,
           const char*& file_in_slot);

enum class Posted {
  not_yet,
  yes,
  complete
};  // complete: the slot already serves a later operation
// `descriptor` is meaningful only after `yes`.
[[nodiscard]] inline Posted read(const Slot& slot, std::uint64_t sequence, Descriptor& descriptor) {
  constexpr auto relaxed = std::memory_order_relaxed;
  std::uint64_t stamp = slot.stamp.load(std::memory_order_seq_cst);
  if (stamp < sequence * 2 || stamp == sequence * 2 + 1) return Posted::not_yet;
  if (stamp > sequence * 2) return Posted::complete;
  descriptor.print = {slot.call.load(relaxed), slot.count.load(relaxed), slot.names.load(relaxed)};
  descriptor.input = Location::of(slot.input.load(relaxed));
  descriptor.output = Location::of(slot.output.load(relaxed));
  std::atomic_thread_fence(std::memory_order_acquire);
  return slot.stamp.load(std::memory_order_acquire) == stamp ? Posted::yes : Posted::complete;
}
// Whether `sequence` has been posted, at the price of one load.
[[nodiscard]] inline bool has_posted(const Slot& slot, std::uint64_t sequence) {
  std::uint64_t stamp = slot.stamp.load(std::memory_order_seq_cst);
  return stamp >= sequence * 2 && stamp != sequence * 2 + 1;
}
// Of what the slot holds now; 0 when nothing yet.
[[nodiscard]] inline std::uint64_t sequence_in(const Slot& slot) {
  return slot.stamp.load(std::memory_order_acquire) / 2;
}

// What the slot's operation is; its fields must stand.
[[nodiscard]] Agreement agreement_in(const Slot& slot);
// What only messages need.
struct PostedCallSite {
  Collective collective = Collective::barrier;  // send and recv told apart
  std::string tag;
  std::string file;
  std::uint32_t line = 0;
};
[[nodiscard]] PostedCallSite call_site_in(const Slot& slot);

}  // namespace lockstep::shm
