// Where a buffer lies, in words that mean the same in every process.
#pragma once

#include <cstdint>

namespace lockstep::shm {

// A byte of the arena of a world rank; default: no buffer.
struct Location {
  int rank = -1;
  std::uint64_t offset = 0;

  [[nodiscard]] bool is_somewhere() const { return rank >= 0; }
  // 0 is nowhere: offset 0 of every arena is its control page.
  [[nodiscard]] std::uint64_t word() const {
    if (!is_somewhere()) return 0;
    return (std::uint64_t(rank) << offset_bits) | offset;
  }
  [[nodiscard]] static Location of(std::uint64_t word) {
    if (word == 0) return {};
    return {static_cast<int>(word >> offset_bits), word & ((std::uint64_t{1} << offset_bits) - 1)};
  }

 private:
  static constexpr int offset_bits = 48;
};

}  // namespace lockstep::shm
