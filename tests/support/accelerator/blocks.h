// The caching allocator. As in CUDA, a freed block can be reused at once by the stream that
// allocated it. If other streams were recorded for the block (record_stream()), it can be reused
// after these streams have finished the tasks that were queued when it was freed.
#pragma once

#include "support/accelerator/clock.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test::accelerator {

struct Block {
  std::size_t begin = 0;  // an offset of device memory
  std::size_t bytes = 0;  // rounded up
  std::size_t wanted = 0;
  Actor stream = 0;              // of its allocation
  std::uint64_t generation = 0;  // the number of the allocation
  bool is_live = true;
  std::set<Actor> recorded = {};    // other streams that use it
  std::vector<Event> pending = {};  // the ends of these streams when it was freed
};

// Every function needs the machine's mutex.
class Blocks {
 public:
  // Returns the offset of a block for a stream. Throws std::bad_alloc if the device is full.
  [[nodiscard]] std::size_t allocate(Actor stream, std::size_t bytes);
  // Frees a block. `end_of(stream)` is an event at the end of a stream. If the block can be given
  // out again at once, calls reusable(block).
  template <class EndOf, class Reusable>
  void release(std::size_t begin, EndOf end_of, Reusable reusable) {
    Block& block = blocks_.at(begin);
    block.is_live = false;
    for (Actor stream : block.recorded)
      if (stream != block.stream) block.pending.push_back(end_of(stream));
    if (block.pending.empty())
      add_to_pool(block, reusable);
    else
      deferred_.push_back(begin);
  }
  // Makes blocks reusable whose recorded streams have finished. Calls forget(block, clock) for each
  // event: the next user of the block comes after it. Then calls reusable(block).
  template <class IsDone, class Forget, class Reusable>
  void collect(IsDone is_done, Forget forget, Reusable reusable) {
    std::erase_if(deferred_, [&](std::size_t begin) {
      Block& block = blocks_.at(begin);
      std::erase_if(block.pending, [&](const Event& event) {
        const bool done = is_done(event);
        if (done) forget(block, event.clock);
        return done;
      });
      if (block.pending.empty()) add_to_pool(block, reusable);
      return block.pending.empty();
    });
  }
  void record(std::size_t offset, Actor stream);
  // Returns the block with this byte; null if no block has ever had it.
  [[nodiscard]] const Block* at(std::size_t offset) const;
  // The number of the last allocation.
  [[nodiscard]] std::uint64_t allocations() const { return allocations_; }
  // Returns "block #3 (64 bytes allocated on sim:0/stream 0) at byte 8".
  [[nodiscard]] std::string describe(std::size_t offset) const;

 private:
  template <class Reusable>
  void add_to_pool(const Block& block, Reusable reusable) {
    pool_[{block.stream, block.bytes}].push_back(block.begin);
    reusable(block);
  }

  std::map<std::size_t, Block> blocks_;  // by begin
  std::array<std::size_t, device_count> used_{};
  std::map<std::pair<Actor, std::size_t>, std::vector<std::size_t>> pool_;  // last freed last
  std::vector<std::size_t> deferred_;
  std::uint64_t allocations_ = 0;
};

}  // namespace lockstep::test::accelerator
