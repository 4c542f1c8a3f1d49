// The happens-before checker. For every byte of device memory it records the last write and the
// reads since then; a launch that uses the byte must be ordered after them. The check is made at
// the launch, so its result does not depend on the order in which the worker runs the tasks. A
// launch that was reported waits for the operations that it is not ordered after. Otherwise the
// host or a kernel could read a length or an index before it was written, which ends the process.
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

// Bytes [begin, end) of device memory.
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
  // Reports earlier accesses that are not ordered before `clock`, and records this access. Returns
  // the ends of the operations that were reported.
  [[nodiscard]] std::vector<Event> check(const Access& access,
                                         const std::shared_ptr<const Operation>& operation,
                                         const Clock& clock);
  // Drops the accesses of a block that are ordered before `clock`: the next user of the block comes
  // after them.
  void forget(const Block& block, const Clock& clock);

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

  void split(std::size_t offset);
  void check_cell(std::size_t begin, const Cell& cell, bool writes, const Use& use,
                  const Clock& clock, std::vector<Event>& unordered);
  void report_conflict(const Use& earlier, bool wrote, const Use& use, bool writes,
                       std::size_t offset);
  static void note_read(Cell& cell, const Use& use);

  const Blocks& blocks_;
  Reports& reports_;
  Cells cells_;  // by where they begin, without overlap
};

}  // namespace lockstep::test::accelerator
