// Transfers: bytes copied between places here and in other processes.
#pragma once

#include "comm/engines/shm/place.h"

#include <cstddef>
#include <memory>
#include <span>

namespace lockstep::shm {

// Memory of one thread that executes segments, through which bytes pass on the way from one other
// process to another: it stays in the second cache. Takes its pages when it is first used.
class Scratch {
 public:
  static constexpr std::size_t bytes = 256 << 10;
  [[nodiscard]] std::byte* data() {
    if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

// Returns 0, or the errno with which another process's memory refused.
[[nodiscard]] int copy(std::span<const Place> to, Place from, std::size_t bytes, bool stream,
                       Scratch& scratch);

}  // namespace lockstep::shm
