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
                         const Clock& clock) {
  if (cell.write.operation && !knows(clock, *cell.write.operation))
    report_conflict(cell.write, true, use, writes, begin);
  if (!writes) return;
  for (const Use& read : cell.reads)
    if (!knows(clock, *read.operation)) report_conflict(read, false, use, true, begin);
}

void Checker::note_read(Cell& cell, const Use& use) {
  auto same = std::ranges::find_if(
      cell.reads, [&](const Use& read) { return read.operation->stream == use.operation->stream; });
  if (same == cell.reads.end())
    cell.reads.push_back(use);
  else
    *same = use;
}

void Checker::check(const Access& access, const std::shared_ptr<const Operation>& operation,
                    const Clock& clock) {
  if (access.begin >= access.end) return;
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
    check_cell(begin, cell->second, writes, use, clock);
    if (!writes) note_read(cell->second, use);
    const Use& write = cell->second.write;
    if (needs_values && (!write.operation || write.generation != use.generation))
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

}  // namespace lockstep::test::accelerator
