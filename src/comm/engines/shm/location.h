// Where a buffer lies, in words that mean the same in every process.
#pragma once

#include <cstdint>

namespace lockstep::shm {

// A byte of the arena of a world rank, or of that rank's private memory; default: no buffer.
struct Location {
  int rank = -1;
  std::uint64_t offset = 0;  // in the arena; in private memory: the address
  bool is_private = false;

  [[nodiscard]] bool is_somewhere() const { return rank >= 0; }
  // 0 is nowhere: offset 0 of every arena is its control page, and no address is 0.
  [[nodiscard]] std::uint64_t word() const {
    if (!is_somewhere()) return 0;
    return (std::uint64_t{is_private} << 63) | (std::uint64_t(rank) << offset_bits) | offset;
  }
  [[nodiscard]] static Location of(std::uint64_t word) {
    if (word == 0) return {};
    return {static_cast<int>(word >> offset_bits & rank_mask),
            word & ((std::uint64_t{1} << offset_bits) - 1), (word >> 63) != 0};
  }

 private:
  static constexpr int offset_bits = 48;
  static constexpr std::uint64_t rank_mask = 0x3fff;
};

}  // namespace lockstep::shm
