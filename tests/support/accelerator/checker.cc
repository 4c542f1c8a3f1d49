#include "support/accelerator/checker.h"

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

std::vector<Event> Checker::check(const Access& access,
                                  const std::shared_ptr<const Operation>& operation,
                                  const Clock& clock) {
  std::vector<Event> unordered;
  if (access.begin >= access.end) return unordered;
  const Block* block = blocks_.at(access.begin);
  const Use use{operation, block == nullptr ? 0 : block->generation};
  if (block != nullptr && !block->is_live)
    reports_.add(Fault::freed, name_of(*operation) + " uses freed memory",
                 ", " + blocks_.describe(access.begin));
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
    check_cell(begin, cell->second, writes, use, clock, unordered);
    if (!writes) note_read(cell->second, use);
    const Use& write = cell->second.write;
    if (needs_values && (!write.operation || write.generation != use.generation))
      reports_.add(Fault::uninitialised,
                   name_of(*operation) + " reads memory that nothing has written",
                   ", " + blocks_.describe(begin));
  }
  if (!writes) return unordered;
  cells_.erase(cells_.lower_bound(access.begin), cells_.lower_bound(access.end));
  cells_.emplace(access.begin, Cell{access.end, use});
  return unordered;
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

}  // namespace lockstep::test::accelerator
