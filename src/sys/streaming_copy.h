// Copies of blocks that are larger than the caches.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::sys {

// Copies like std::memcpy between equally long, non-overlapping ranges, but writes past the caches:
// the destination is not read first, and other cached data is not evicted. For blocks that are not
// read again soon. Thread-safe; other threads see the bytes as after ordinary writes.
void streaming_copy(std::span<std::byte> to, std::span<const std::byte> from) noexcept;

// The implementations, fastest first. streaming_copy() uses the first one that the processor
// supports; the last one works on every processor. Tests compare all of them.
struct StreamingKernel {
  const char* name;
  bool (*is_available)();
  // Copies whole cache lines of 64 bytes; `to` must be aligned to a line.
  void (*copy_lines)(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;
};
[[nodiscard]] std::span<const StreamingKernel> streaming_kernels();
void streaming_copy_by(const StreamingKernel& kernel, std::span<std::byte> to,
                       std::span<const std::byte> from) noexcept;

}  // namespace lockstep::sys
