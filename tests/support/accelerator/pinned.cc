#include "support/accelerator/pinned.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace lockstep::test::accelerator {

void* PinnedMemory::allocate(std::size_t bytes) {
  const std::size_t size =
      (std::max<std::size_t>(bytes, 1) + page_bytes - 1) / page_bytes * page_bytes;
  auto& free = free_[size];
  // Reuse only idle buffers: LibTorch's pinned allocator reuses a block once the events of its
  // copies have completed.
  auto idle =
      std::ranges::find_if(free, [&](std::size_t begin) { return buffers_.at(begin).copies == 0; });
  if (idle != free.end()) {
    const std::size_t begin = *idle;
    free.erase(idle);
    return memory_.pinned_address(begin);
  }
  if (used_ + size > pinned_bytes) throw std::bad_alloc();
  const std::size_t begin = std::exchange(used_, used_ + size);
  buffers_[begin] = {size};
  return memory_.pinned_address(begin);
}

void PinnedMemory::release(void* address) {
  const std::size_t begin = memory_.pinned_offset_of(address);
  free_[buffers_.at(begin).bytes].push_back(begin);
}

std::size_t PinnedMemory::buffer_of(const void* address) const {
  return std::prev(buffers_.upper_bound(memory_.pinned_offset_of(address)))->first;
}

void PinnedMemory::begin_copy(const void* address, bool writes, std::string name, Actor stream,
                              std::uint32_t time) {
  const std::size_t begin = buffer_of(address);
  Buffer& buffer = buffers_.at(begin);
  ++buffer.copies;
  if (writes || buffer.copies == 1)  // a copy that reads leaves a closed buffer closed
    memory_.protect_pinned(begin, buffer.bytes,
                           writes ? Memory::Access::none : Memory::Access::read);
  copies_.push_back({begin, stream, time, std::move(name)});
}

std::string PinnedMemory::describe(const void* address) const {
  const std::size_t begin = buffer_of(address);
  std::string text;
  for (const Copy& copy : copies_)
    if (copy.buffer == begin) text += " '" + copy.name + "' on " + name_of_stream(copy.stream);
  return text;
}

}  // namespace lockstep::test::accelerator
