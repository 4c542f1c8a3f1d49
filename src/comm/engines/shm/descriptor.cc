#include "comm/engines/shm/descriptor.h"

namespace lockstep::shm {
namespace {

constexpr std::uint64_t line_bits = 32;

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Agreement Agreement::of(const Fingerprint& print) {
  return {static_cast<Collective>(print.call & 0xff),
          static_cast<Op>(print.call >> 16 & 0xff),
          static_cast<DType>(print.call >> 24 & 0xff),
          static_cast<int>(print.call >> 32),
          (print.call >> 8 & 1) != 0,
          print.count};
}

void begin_write(Slot& slot, std::uint64_t sequence) {
  // Release: who sees this takes the operation before for complete, results and all.
  slot.stamp.store(sequence * 2 + 1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
}

void write(Slot& slot, std::uint64_t sequence, const Descriptor& descriptor, const CallSite& site,
           const char*& file_in_slot) {
  constexpr auto relaxed = std::memory_order_relaxed;
  begin_write(slot, sequence);
  slot.call.store(descriptor.print.call, relaxed);
  slot.count.store(descriptor.print.count, relaxed);
  slot.names.store(descriptor.print.names, relaxed);
  slot.input.store(descriptor.input.word(), relaxed);
  slot.output.store(descriptor.output.word(), relaxed);
  slot.line.store(static_cast<std::uint64_t>(site.collective) << line_bits | site.where.line(),
                  relaxed);
  slot.tag.store(site.tag);
  if (file_in_slot != site.where.file_name()) {
    file_in_slot = site.where.file_name();
    slot.file.store(file_name(file_in_slot));
  }
  // seq_cst: the poster then looks at the other stamps, and of two that post at once at least one
  // must see both.
  slot.stamp.store(sequence * 2, std::memory_order_seq_cst);
}

Agreement agreement_in(const Slot& slot) {
  return Agreement::of(
      {slot.call.load(std::memory_order_relaxed), slot.count.load(std::memory_order_relaxed), 0});
}

PostedCallSite call_site_in(const Slot& slot) {
  const auto word = slot.line.load(std::memory_order_relaxed);
  return {.collective = static_cast<Collective>(word >> line_bits),
          .tag = slot.tag.load(),
          .file = slot.file.load(),
          .line = static_cast<std::uint32_t>(word)};
}

}  // namespace lockstep::shm
