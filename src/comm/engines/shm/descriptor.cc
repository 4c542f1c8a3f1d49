#include "comm/engines/shm/descriptor.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include <vector>

namespace lockstep::shm {
namespace {

constexpr std::uint64_t line_bits = 32;

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

Collective caller_name(const Slot& slot) {
  return static_cast<Collective>(slot.line.load(std::memory_order_relaxed) >> line_bits);
}

std::string call_site(const Slot& slot) {
  return formatted("{}:{}", slot.file.load(),
                   slot.line.load(std::memory_order_relaxed) & ((1ULL << line_bits) - 1));
}

std::string describe(const Slot& slot, std::vector<std::string> notes) {
  if (auto tag = slot.tag.load(); !tag.empty()) notes.insert(notes.begin(), std::move(tag));
  notes.push_back(call_site(slot));
  return formatted("{} #{} ({})", name_of(caller_name(slot)), sequence_in(slot), join(notes));
}

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

std::string describe(const Slot& slot) {
  Agreement call = agreement_in(slot);
  std::vector<std::string> notes;
  auto bytes = static_cast<std::int64_t>(call.count * bytes_of(call.dtype));
  if (call.collective != Collective::barrier && !(call.uneven && bytes == 0))
    notes.push_back(format_bytes(bytes));
  return describe(slot, std::move(notes));
}

std::string describe_fully(const Slot& slot, std::string_view counts) {
  Agreement call = agreement_in(slot);
  std::vector<std::string> notes;
  if (combines(call.collective)) notes.emplace_back(name_of(call.op));
  if (has_root(call.collective)) notes.push_back(formatted("root {}", call.root));
  if (call.uneven && call.collective == Collective::all_to_all)
    notes.emplace_back(name_of(call.dtype));
  else if (call.collective != Collective::barrier)
    notes.push_back(formatted("{} x {}", call.count, name_of(call.dtype)));
  if (call.uneven) notes.push_back(counts.empty() ? "uneven" : formatted("uneven: {}", counts));
  return describe(slot, std::move(notes));
}

}  // namespace lockstep::shm
