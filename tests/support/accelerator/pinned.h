// Pinned host memory. From the launch of an asynchronous copy until a host has synchronised with
// it, the buffer's host mapping is closed (read-only if the copy only reads the buffer). A host
// that reuses a buffer too early is therefore always caught.
#pragma once

#include "support/accelerator/clock.h"
#include "support/accelerator/memory.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

// Every function needs the machine's mutex.
class PinnedMemory {
 public:
  explicit PinnedMemory(Memory& memory) : memory_(memory) {}
  [[nodiscard]] void* allocate(std::size_t bytes);
  void release(void* address);
  // Call when a copy that uses the buffer is launched.
  void begin_copy(const void* address, bool writes, std::string name, Actor stream,
                  std::uint32_t time);
  // Opens the buffers of copies that the host of the copy's stream has waited for.
  template <class ClockOf>
  void end_copies(ClockOf clock_of) {
    std::erase_if(copies_, [&](const Copy& copy) {
      if (clock_of(copy.stream)[copy.stream] < copy.time) return false;
      Buffer& buffer = buffers_.at(copy.buffer);
      if (--buffer.copies == 0)
        memory_.protect_pinned(copy.buffer, buffer.bytes, Memory::Access::write);
      return true;
    });
  }
  // Names the copies in flight that use the buffer.
  [[nodiscard]] std::string describe(const void* address) const;

 private:
  struct Buffer {
    std::size_t bytes = 0;
    int copies = 0;  // in flight
  };
  struct Copy {
    std::size_t buffer = 0;
    Actor stream = 0;
    std::uint32_t time = 0;
    std::string name;
  };
  [[nodiscard]] std::size_t buffer_of(const void* address) const;

  Memory& memory_;
  std::size_t used_ = 0;
  std::map<std::size_t, Buffer> buffers_;  // by where they begin
  std::map<std::size_t, std::vector<std::size_t>> free_;
  std::vector<Copy> copies_;
};

}  // namespace lockstep::test::accelerator
