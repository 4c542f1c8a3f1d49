#include "checkpoint/checksum.h"

#include <zlib.h>

namespace lockstep::checkpoint {

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  // zlib takes a null pointer for a wish to begin anew.
  if (bytes.empty()) return before;
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

// crc(a + b) = shift(crc(a), length of b) ^ crc(b), and shift(c, n) is what zlib calls combining
// with an empty text's checksum of n bytes.
std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind) {
  return static_cast<std::uint32_t>(::crc32_combine(checksum, 0, static_cast<z_off_t>(behind)));
}

}  // namespace lockstep::checkpoint
