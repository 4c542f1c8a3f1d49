// The happens-before checker. For every byte of device memory it records the last write and the
// reads since then; a launch that uses the byte must be ordered after them. The check is made at
// the launch, so its result does not depend on the order in which the worker runs the tasks. A
// launch that was reported waits for the operations that it is not ordered after. Otherwise the
// host or a kernel could read a length or an index before it was written, which ends the process.
//
// A caching allocator splits freed blocks. So the memory of a freed block could be part of every
// block that its stream allocates from then on: a launch that uses such a block must be ordered
// after the accesses of the freed one, until that block itself is given out again.
#pragma once

#include "support/accelerator/blocks.h"
#include "support/accelerator/clock.h"
#include "support/accelerator/reports.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

enum class AccessKind {
  read,
  copy,  // reads; the bytes may never have been written, as padding is
  write,
  update,  // reads and writes: an operation in place
};

// Bytes [begin, end) of device memory, or of pinned memory (first_pinned_offset).
struct Access {
  std::size_t begin = 0;
  std::size_t end = 0;
  AccessKind kind = AccessKind::read;
};

struct Operation {
  std::string name;
  Actor stream = 0;
  std::uint32_t time = 0;      // in its stream's component of the clocks
  std::uint64_t sequence = 0;  // of its task among those of its stream
};

// Every function needs the machine's mutex.
class Checker {
 public:
  Checker(const Blocks& blocks, Reports& reports) : blocks_(blocks), reports_(reports) {}
  struct Findings {
    std::vector<Event> unordered = {};   // the ends of the operations that were reported
    std::vector<Access> unwritten = {};  // bytes that are read, and that nothing has written
  };
  // Reports earlier accesses that are not ordered before `clock`, and records this access. Adds to
  // `found`.
  void check(const Access& access, const std::shared_ptr<const Operation>& operation,
             const Clock& clock, Findings& found);
  // Drops the accesses of a block that are ordered before `clock`: the next user of the block comes
  // after them.
  void forget(const Block& block, const Clock& clock);
  // Drops all accesses of bytes [begin, end).
  void forget_all(std::size_t begin, std::size_t end);
  // Call when a freed block can be given out again by its stream, whose clock is `clock`, and when
  // the block that begins at `begin` is given out.
  void note_reusable(const Block& block, const Clock& clock);
  void note_given_out(std::size_t begin) { reusable_.erase(begin); }

 private:
  struct Use {
    std::shared_ptr<const Operation> operation;
    std::uint64_t generation = 0;  // of the block
  };
  struct Cell {
    std::size_t end = 0;
    Use write = {};
    std::vector<Use> reads = {};  // since the write, one per stream
  };
  using Cells = std::map<std::size_t, Cell>;
  // The accesses of a freed block that its stream is not ordered after.
  struct Reusable {
    Actor stream = 0;
    std::uint64_t allocations = 0;  // when the block became reusable
    std::vector<Use> writes = {};
    std::vector<Use> reads = {};
  };

  void split(std::size_t offset);
  // Returns true if the access is inside a block that is in use; otherwise reports it.
  bool check_block(const Block* block, const Access& access, const Operation& operation);
  void check_reusable(const Block& block, const Operation& operation, const Clock& clock);
  void check_cell(std::size_t begin, const Cell& cell, bool writes, const Use& use,
                  const Clock& clock, std::vector<Event>& unordered);
  void report_conflict(const Use& earlier, bool wrote, const Use& use, bool writes,
                       std::size_t offset);
  static void add_unknown(std::vector<Use>& unknown, const Use& use, const Clock& clock);
  static void note_read(Cell& cell, const Use& use);

  const Blocks& blocks_;
  Reports& reports_;
  Cells cells_;                               // by where they begin, without overlap
  std::map<std::size_t, Reusable> reusable_;  // by where the blocks begin
};

}  // namespace lockstep::test::accelerator
