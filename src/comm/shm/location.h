// Where a buffer lies, in words that mean the same in every process.
#pragma once

#include <cstdint>

namespace lockstep::shm {

// A byte of the arena of a world rank; default: no buffer.
struct Location {
  int arena = -1;
  std::uint64_t offset = 0;

  [[nodiscard]] bool is_somewhere() const { return arena >= 0; }
  // 0 is nowhere: offset 0 of every arena is its control page.
  [[nodiscard]] std::uint64_t word() const {
    return is_somewhere() ? (std::uint64_t(arena) << 48) | offset : 0;
  }
  [[nodiscard]] static Location of(std::uint64_t word) {
    return word == 0
               ? Location{}
               : Location{static_cast<int>(word >> 48), word & ((std::uint64_t{1} << 48) - 1)};
  }
};

}  // namespace lockstep::shm
