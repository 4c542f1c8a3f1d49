// The ways to compute a CRC-32, the fastest first. checksum.h chooses one of them; tests compare
// them all with the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::checkpoint {

struct Crc32Kernel {
  const char* name;
  // Whether this processor has the instructions.
  bool (*is_available)();
  // Takes a multiple of this many bytes, but not none; zlib takes the rest.
  std::size_t round_bytes;
  // Of `bytes` behind others whose checksum was `before`.
  std::uint32_t (*of)(std::span<const std::byte> bytes, std::uint32_t before);
  // The same, and copies them past the caches to the beginning of a line of 64 bytes; null where
  // this is not one loop.
  std::uint32_t (*of_copied)(std::span<const std::byte> bytes, std::uint32_t before,
                             std::byte* to) = nullptr;
};

// The last is zlib's, which works by tables and on every processor.
[[nodiscard]] std::span<const Crc32Kernel> crc32_kernels();

// Of bytes of any length.
[[nodiscard]] std::uint32_t crc32_by(const Crc32Kernel& kernel, std::span<const std::byte> bytes,
                                     std::uint32_t before);
// Of bytes of any length, which it copies to any place.
std::uint32_t crc32_copied_by(const Crc32Kernel& kernel, std::span<std::byte> to,
                              std::span<const std::byte> from, std::uint32_t before);

}  // namespace lockstep::checkpoint
