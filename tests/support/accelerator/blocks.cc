#include "support/accelerator/blocks.h"

#include "support/accelerator/memory.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace lockstep::test::accelerator {
namespace {

constexpr std::size_t block_unit = 512;

}  // namespace

std::size_t Blocks::allocate(Actor stream, std::size_t bytes) {
  const std::size_t size =
      (std::max<std::size_t>(bytes, 1) + block_unit - 1) / block_unit * block_unit;
  auto& free = pool_[{stream, size}];
  std::size_t begin = 0;
  if (!free.empty()) {
    begin = free.back();
    free.pop_back();
  } else {
    const int device = device_of(stream);
    if (used_.at(device) + size > device_bytes) throw std::bad_alloc();
    begin = device * device_bytes + used_.at(device);
    used_.at(device) += size;
  }
  blocks_[begin] = Block{begin, size, bytes, stream, ++allocations_};
  return begin;
}

void Blocks::record(std::size_t offset, Actor stream) {
  auto next = blocks_.upper_bound(offset);
  if (next != blocks_.begin()) std::prev(next)->second.recorded.insert(stream);
}

const Block* Blocks::at(std::size_t offset) const {
  auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) return nullptr;
  const Block& block = std::prev(next)->second;
  return offset < block.begin + block.bytes ? &block : nullptr;
}

std::string Blocks::describe(std::size_t offset) const {
  const Block* block = at(offset);
  if (is_pinned_offset(offset))
    return "byte " + std::to_string(offset - first_pinned_offset) + " of pinned memory";
  if (block == nullptr) return "no block";
  return "block #" + std::to_string(block->generation) + " (" + std::to_string(block->wanted) +
         " bytes allocated on " + name_of_stream(block->stream) +
         (block->is_live ? "" : ", already freed") + ") at byte " +
         std::to_string(offset - block->begin);
}

}  // namespace lockstep::test::accelerator
