// The implementations of CRC-32, the fastest first. checksum.h selects one of them; tests compare
// them all with the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::checkpoint {

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
