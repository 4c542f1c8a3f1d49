#include <lockstep/checkpoint/checksum.h>

#include <zlib.h>

namespace lockstep::checkpoint {

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  // zlib takes a null pointer for a wish to begin anew.
  if (bytes.empty()) return before;
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

}  // namespace lockstep::checkpoint
