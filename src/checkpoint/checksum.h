// The checksum by which damage to files is found: CRC-32 as zlib, gzip and PNG have it (Python:
// zlib.crc32). It finds mistakes of disks and copies, not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::checkpoint {

// Of `bytes` behind others whose checksum was `before`; 0: behind none.
[[nodiscard]] std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

// Of `from`, which is copied to as many bytes of `to` past the caches (sys/streaming_copy.h).
[[nodiscard]] std::uint32_t crc32_of_copied(std::span<std::byte> to,
                                            std::span<const std::byte> from);

// What a stretch of a file with this checksum adds to the checksum of the whole, when `behind`
// bytes follow it there: the exclusive or of all stretches' shares, in any order, is the whole's.
[[nodiscard]] std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind);

}  // namespace lockstep::checkpoint
