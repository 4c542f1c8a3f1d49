// The checksum that detects damage to files: CRC-32 as in zlib, gzip and PNG (Python: zlib.crc32).
// It detects errors of disks and copies, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::checkpoint {

// Returns the checksum of `bytes` appended to data with the checksum `before`; 0: to no data.
[[nodiscard]] std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

// Returns the checksum of `from` and copies it to `to`, bypassing the caches. Both have the same
// size.
[[nodiscard]] std::uint32_t crc32_of_copied(std::span<std::byte> to,
                                            std::span<const std::byte> from);

// Returns the contribution of a part of a file with this checksum to the checksum of the whole, if
// `behind` bytes follow it: the exclusive or of all parts' contributions, in any order, is the
// checksum of the whole.
[[nodiscard]] std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind);

}  // namespace lockstep::checkpoint
