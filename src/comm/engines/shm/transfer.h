// Transfers: the bytes of one segment, moved or combined between places here and in other
// processes.
//
// What lies in another process passes through a scratch block that stays in the second cache: read
// a block of every input, combine, store, write the block to the outputs elsewhere.
#pragma once

#include "comm/engines/shm/place.h"
#include "comm/kernels/combine.h"

#include <cstddef>
#include <memory>
#include <span>

namespace lockstep::shm {

// Memory of one thread that executes segments. Takes its pages when it is first used.
class Scratch {
 public:
  static constexpr std::size_t bytes = 256 << 10;

  // `count` blocks of equal size, one after another; the size of one.
  [[nodiscard]] std::size_t divide(std::size_t count);
  [[nodiscard]] std::byte* block(std::size_t index) { return memory_.get() + index * block_bytes_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t block_bytes_ = 0;
};

// Each returns 0, or the errno with which another process's memory refused.
[[nodiscard]] int copy(std::span<const Place> to, Place from, std::size_t bytes, bool stream,
                       Scratch& scratch);

using PlacedCombination = kernels::CombinationOf<Place, Place>;
[[nodiscard]] int combine(const PlacedCombination& combination, Scratch& scratch);

}  // namespace lockstep::shm
