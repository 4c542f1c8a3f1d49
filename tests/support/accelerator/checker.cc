#include "support/accelerator/checker.h"

#include "support/accelerator/memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::test::accelerator {
namespace {

bool knows(const Clock& clock, const Operation& operation) {
  return clock[operation.stream] >= operation.time;
}

std::string name_of(const Operation& operation) {
  return "'" + operation.name + "' on " + name_of_stream(operation.stream);
}

Event end_of(const Operation& operation) {
  return {.stream = operation.stream, .sequence = operation.sequence};
}

}  // namespace

void Checker::report_conflict(const Use& earlier, bool wrote, const Use& use, bool writes,
                              std::size_t offset) {
  const bool is_reuse = earlier.generation != use.generation;
  reports_.add(is_reuse ? Fault::reuse : Fault::race,
               std::string(is_reuse ? "freed and given out again without order: " : "no order: ") +
                   name_of(*use.operation) + (writes ? " writes" : " reads") + " what " +
                   name_of(*earlier.operation) + (wrote ? " wrote" : " read"),
               ", " + blocks_.describe(offset));
}

void Checker::split(std::size_t offset) {
  auto next = cells_.upper_bound(offset);
  if (next == cells_.begin()) return;
  auto cell = std::prev(next);
  if (cell->first == offset || cell->second.end <= offset) return;
  Cell right = cell->second;
  cell->second.end = offset;
  cells_.emplace(offset, std::move(right));
}

void Checker::check_cell(std::size_t begin, const Cell& cell, bool writes, const Use& use,
                         const Clock& clock, std::vector<Event>& unordered) {
  const auto compare = [&](const Use& earlier, bool wrote) {
    if (knows(clock, *earlier.operation)) return;
    report_conflict(earlier, wrote, use, writes, begin);
    unordered.push_back(end_of(*earlier.operation));
  };
  if (cell.write.operation) compare(cell.write, /*wrote=*/true);
  if (!writes) return;
  for (const Use& read : cell.reads) compare(read, /*wrote=*/false);
}

void Checker::note_read(Cell& cell, const Use& use) {
  auto same = std::ranges::find_if(
      cell.reads, [&](const Use& read) { return read.operation->stream == use.operation->stream; });
  if (same == cell.reads.end())
    cell.reads.push_back(use);
  else
    *same = use;
}

bool Checker::check_block(const Block* block, const Access& access, const Operation& operation) {
  const bool is_inside = block != nullptr && access.end <= block->begin + block->wanted;
  if (is_inside && block->is_live) return true;
  reports_.add(
      Fault::freed,
      name_of(operation) + (is_inside ? " uses freed memory" : " uses memory outside of its block"),
      ", " + blocks_.describe(access.begin));
  return false;
}

void Checker::check_reusable(const Block& block, const Operation& operation, const Clock& clock) {
  for (const auto& [begin, freed] : reusable_) {
    if (freed.stream != block.stream || freed.allocations >= block.generation) continue;
    const auto compare = [&, at = begin](const Use& earlier, const char* what) {
      if (knows(clock, *earlier.operation)) return;
      reports_.add(Fault::reuse,
                   "freed without order: " + name_of(operation) + " may use memory that " +
                       name_of(*earlier.operation) + what,
                   ", " + blocks_.describe(at));
    };
    for (const Use& write : freed.writes) compare(write, " wrote");
    for (const Use& read : freed.reads) compare(read, " read");
  }
}

void Checker::check(const Access& access, const std::shared_ptr<const Operation>& operation,
                    const Clock& clock, Findings& found) {
  if (access.begin >= access.end) return;
  const Block* block = blocks_.at(access.begin);
  const Use use{operation, block == nullptr ? 0 : block->generation};
  const bool is_in_block =
      !is_pinned_offset(access.begin) && check_block(block, access, *operation);
  if (is_in_block) check_reusable(*block, *operation, clock);
  const bool writes = access.kind == AccessKind::write || access.kind == AccessKind::update;
  const bool needs_values = access.kind == AccessKind::read || access.kind == AccessKind::update;
  split(access.begin);
  split(access.end);
  auto cell = cells_.lower_bound(access.begin);
  for (std::size_t begin = access.begin; begin < access.end; begin = cell->second.end, ++cell) {
    if (cell == cells_.end() || cell->first > begin) {  // bytes that nothing has used yet
      const std::size_t end = cell == cells_.end() ? access.end : std::min(access.end, cell->first);
      cell = cells_.emplace_hint(cell, begin, Cell{end});
    }
    check_cell(begin, cell->second, writes, use, clock, found.unordered);
    if (!writes) note_read(cell->second, use);
    const Use& write = cell->second.write;
    const bool is_written = write.operation && write.generation == use.generation;
    if (is_in_block && !is_written && access.kind != AccessKind::write)
      found.unwritten.push_back({begin, cell->second.end, access.kind});
    if (needs_values && !is_written)
      reports_.add(Fault::uninitialised,
                   name_of(*operation) + " reads memory that nothing has written",
                   ", " + blocks_.describe(begin));
  }
  if (!writes) return;
  cells_.erase(cells_.lower_bound(access.begin), cells_.lower_bound(access.end));
  cells_.emplace(access.begin, Cell{access.end, use});
}

void Checker::forget(const Block& block, const Clock& clock) {
  split(block.begin);
  split(block.begin + block.bytes);
  auto is_known = [&](const Use& use) { return use.operation && knows(clock, *use.operation); };
  const auto end = cells_.lower_bound(block.begin + block.bytes);
  for (auto cell = cells_.lower_bound(block.begin); cell != end; ++cell) {
    if (is_known(cell->second.write)) cell->second.write = {};
    std::erase_if(cell->second.reads, is_known);
  }
}

void Checker::forget_all(std::size_t begin, std::size_t end) {
  split(begin);
  split(end);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
}

void Checker::add_unknown(std::vector<Use>& unknown, const Use& use, const Clock& clock) {
  if (!use.operation || knows(clock, *use.operation)) return;
  const auto same = [&](const Use& other) { return other.operation == use.operation; };
  if (std::ranges::none_of(unknown, same)) unknown.push_back(use);
}

void Checker::note_reusable(const Block& block, const Clock& clock) {
  Reusable freed{.stream = block.stream, .allocations = blocks_.allocations()};
  const auto end = cells_.lower_bound(block.begin + block.bytes);
  for (auto cell = cells_.lower_bound(block.begin); cell != end; ++cell) {
    add_unknown(freed.writes, cell->second.write, clock);
    for (const Use& read : cell->second.reads) add_unknown(freed.reads, read, clock);
  }
  // Drops the accesses that the stream is ordered after by now.
  const auto is_known = [&](const Use& use) { return knows(clock, *use.operation); };
  for (auto& [begin, other] : reusable_) {
    if (other.stream != block.stream) continue;
    std::erase_if(other.writes, is_known);
    std::erase_if(other.reads, is_known);
  }
  std::erase_if(reusable_, [](const auto& entry) {
    return entry.second.writes.empty() && entry.second.reads.empty();
  });
  if (!freed.writes.empty() || !freed.reads.empty())
    reusable_.insert_or_assign(block.begin, std::move(freed));
}

}  // namespace lockstep::test::accelerator
