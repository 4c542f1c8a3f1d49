// The checksum that detects damage to files: CRC-32 as in zlib, gzip and PNG (Python: zlib.crc32).
// It detects errors of disks and copies, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::checkpoint {

// Returns the checksum of `bytes` appended to data with the checksum `before`; 0: to no data.
[[nodiscard]] std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

// Returns the checksum of `from` and copies it to `to`, bypassing the caches. Both
// have the same size.
[[nodiscard]] std::uint32_t crc32_of_copied(std::span<std::byte> to,
                                            std::span<const std::byte> from);

// Returns the contribution of a part of a file with this checksum to the checksum of the whole, if
// `behind` bytes follow it: the exclusive or of all parts' contributions, in any order, is the
// checksum of the whole.
[[nodiscard]] std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind);

// The implementations of CRC-32, the fastest first. checksum.h selects one of them; tests compare
// them all with the last.

struct Crc32Kernel {
  const char* name;
  // Returns true if this processor has the instructions.
  bool (*is_available)();
  // The number of bytes must be a positive multiple of this; zlib processes the rest.
  std::size_t round_bytes;
  // Returns the checksum of `bytes` appended to data with the checksum `before`.
  std::uint32_t (*of)(std::span<const std::byte> bytes, std::uint32_t before);
  // Also copies the bytes, bypassing the caches, to a 64-byte aligned address; null if there is no
  // fused loop.
  std::uint32_t (*of_copied)(std::span<const std::byte> bytes, std::uint32_t before,
                             std::byte* to) = nullptr;
};

// The last kernel is zlib's, which uses tables and works on every processor.
[[nodiscard]] std::span<const Crc32Kernel> crc32_kernels();

// Accepts bytes of any length.
[[nodiscard]] std::uint32_t crc32_by(const Crc32Kernel& kernel, std::span<const std::byte> bytes,
                                     std::uint32_t before);
// Accepts bytes of any length and copies them to any address.
std::uint32_t crc32_copied_by(const Crc32Kernel& kernel, std::span<std::byte> to,
                              std::span<const std::byte> from, std::uint32_t before);

}  // namespace lockstep::checkpoint
