#include "checkpoint/checksum.h"

#include "checkpoint/crc32_kernels.h"

#include <zlib.h>

#include <algorithm>

namespace lockstep::checkpoint {

namespace {

const Crc32Kernel& fastest_kernel() {
  static const Crc32Kernel& fastest = *std::ranges::find_if(
      crc32_kernels(), [](const auto& kernel) { return kernel.is_available(); });
  return fastest;
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return crc32_by(fastest_kernel(), bytes, before);
}

std::uint32_t crc32_of_copied(std::span<std::byte> to, std::span<const std::byte> from) {
  return crc32_copied_by(fastest_kernel(), to, from, 0);
}

// crc(a + b) = shift(crc(a), length of b) ^ crc(b), and shift(c, n) is zlib's crc32_combine with
// the checksum 0 and length n.
std::uint32_t crc32_share(std::uint32_t checksum, std::uint64_t behind) {
  return static_cast<std::uint32_t>(::crc32_combine(checksum, 0, static_cast<z_off_t>(behind)));
}

}  // namespace lockstep::checkpoint
